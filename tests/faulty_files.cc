#include "tests/faulty_files.h"

#include <algorithm>
#include <utility>

namespace pagezip {

class FaultyFiles::Handle : public OpenFile {
 public:
  Handle(FaultyFiles& files, InodePtr inode) : files_(files), inode_(std::move(inode)) {}

  IoResult read_at(int64_t offset, std::span<std::byte> target) override {
    if (const int error = files_.begin_call(false, [](double) {}); error != 0) return {0, error};
    const auto size = static_cast<int64_t>(inode_->now.size());
    const int64_t count =
        std::clamp<int64_t>(size - offset, 0, static_cast<int64_t>(target.size()));
    std::copy_n(inode_->now.begin() + std::min(offset, size), count, target.begin());
    return {count, 0};
  }

  IoResult write_at(int64_t offset, std::span<const std::byte> bytes) override {
    const auto write = [&](double share) {
      const auto count = static_cast<size_t>(share * static_cast<double>(bytes.size()));
      const std::span<const std::byte> part = bytes.first(count);
      apply(inode_->now, offset, part);
      inode_->unsynced.emplace_back(offset, Bytes(part.begin(), part.end()));
      return static_cast<int64_t>(count);
    };
    const int error = files_.begin_call(true, write);
    if (error != 0) return {0, error};
    const bool is_short = files_.fault_ == Fault::kShortWrite &&
                          files_.calls_ >= files_.fault_call_ && bytes.size() > 1 &&
                          (files_.fault_stays_ || files_.calls_ == files_.fault_call_);
    return {write(is_short ? 0.5 : 1.0), 0};
  }

  int sync() override {
    // A sync that the power interrupts, or that fails, may have done its work or not.
    if (const int error = files_.begin_call(true, [](double) {}); error != 0) return error;
    inode_->synced = inode_->now;
    inode_->unsynced.clear();
    return 0;
  }

 private:
  FaultyFiles& files_;
  InodePtr inode_;
};

void FaultyFiles::set_fault(Fault fault, int64_t call, bool stays) {
  fault_ = fault;
  fault_call_ = call;
  fault_stays_ = stays;
}

int FaultyFiles::begin_call(bool writes, const std::function<void(double share)>& effect) {
  if (is_off_) return EIO;
  ++calls_;
  if (calls_ != fault_call_ && !(fault_stays_ && calls_ > fault_call_)) return 0;
  switch (fault_) {
    case Fault::kPowerLoss:
      effect(tears_.uniform());
      is_off_ = true;
      return EIO;
    case Fault::kIoError:
      return EIO;
    case Fault::kNoSpace:
      return writes ? ENOSPC : 0;
    default:
      return 0;
  }
}

void FaultyFiles::apply(Bytes& target, int64_t offset, std::span<const std::byte> bytes) {
  const size_t end = static_cast<size_t>(offset) + bytes.size();
  if (!bytes.empty() && target.size() < end) target.resize(end);
  std::copy(bytes.begin(), bytes.end(), target.begin() + offset);
}

void FaultyFiles::set_name(const std::string& path, InodePtr inode) {
  unsynced_names_[path].push_back(inode);
  if (inode == nullptr) {
    names_.erase(path);
  } else {
    names_[path] = std::move(inode);
  }
}

Opened FaultyFiles::open(const std::string& path, OpenMode mode) {
  const bool creates = mode == OpenMode::kCreate || mode == OpenMode::kLock;
  const auto create = [&] {
    if (creates && !names_.contains(path)) set_name(path, std::make_shared<Inode>());
  };
  const int error = begin_call(creates, [&](double share) {
    if (share > 0.5) create();
  });
  if (error != 0) return {nullptr, 0, true, error};
  const bool exists = names_.contains(path);
  if (mode == OpenMode::kCreate && exists) return {nullptr, 0, true, EEXIST};
  create();
  if (!names_.contains(path)) return {nullptr, 0, true, ENOENT};
  const InodePtr& inode = names_[path];
  return {std::make_unique<Handle>(*this, inode), static_cast<int64_t>(inode->now.size()), true, 0};
}

int FaultyFiles::rename(const std::string& from, const std::string& to) {
  const auto move = [&] {
    const InodePtr inode = names_[from];
    set_name(to, inode);
    set_name(from, nullptr);
  };
  if (!names_.contains(from)) return ENOENT;
  const int error = begin_call(true, [&](double share) {
    if (share > 0.5) move();
  });
  if (error == 0) move();
  return error;
}

int FaultyFiles::remove(const std::string& path) {
  if (!names_.contains(path)) return ENOENT;
  const int error = begin_call(false, [&](double share) {
    if (share > 0.5) set_name(path, nullptr);
  });
  if (error == 0) set_name(path, nullptr);
  return error;
}

int FaultyFiles::sync_folder(const std::string&) {
  if (const int error = begin_call(true, [](double) {}); error != 0) return error;
  synced_names_ = names_;
  unsynced_names_.clear();
  return 0;
}

int FaultyFiles::list(const std::string& folder, std::vector<std::string>& names) {
  if (const int error = begin_call(false, [](double) {}); error != 0) return error;
  names.clear();
  for (const auto& [path, inode] : names_) {
    if (folder_of(path) == folder) names.push_back(path.substr(folder.size() + 1));
  }
  return 0;
}

std::vector<std::string> FaultyFiles::names() const {
  std::vector<std::string> names;
  for (const auto& [path, inode] : names_) names.push_back(path);
  return names;
}

std::unique_ptr<FaultyFiles> FaultyFiles::restarted(Survival survival, Prng& prng) const {
  std::map<std::string, InodePtr> survivors = synced_names_;
  for (const auto& [path, states] : unsynced_names_) {
    const auto old = synced_names_.find(path);
    std::vector<InodePtr> choices = {old == synced_names_.end() ? nullptr : old->second};
    choices.insert(choices.end(), states.begin(), states.end());
    const size_t choice = survival == Survival::kSynced       ? 0
                          : survival == Survival::kEverything ? choices.size() - 1
                                                              : prng.below(choices.size());
    survivors[path] = choices[choice];
  }
  std::map<InodePtr, InodePtr> contents;
  const auto content_of = [&](const InodePtr& inode) {
    InodePtr& kept = contents[inode];
    if (kept == nullptr) {
      kept = std::make_shared<Inode>();
      kept->now = survival == Survival::kEverything ? inode->now : inode->synced;
      for (const auto& [offset, bytes] : inode->unsynced) {
        if (survival != Survival::kRandom || prng.chance(0.5)) continue;
        const size_t count = prng.chance(0.5) ? bytes.size() : prng.below(bytes.size() + 1);
        apply(kept->now, offset, std::span(bytes).first(count));
      }
      kept->synced = kept->now;
    }
    return kept;
  };
  auto files = std::make_unique<FaultyFiles>();
  for (const auto& [path, inode] : survivors) {
    if (inode != nullptr) files->names_[path] = content_of(inode);
  }
  files->synced_names_ = files->names_;
  files->tears_ = Prng(prng.next());
  return files;
}

}  // namespace pagezip
