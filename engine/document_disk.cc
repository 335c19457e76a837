#include "engine/document_disk.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace pagezip {
namespace {

constexpr int64_t kSliceBytes = int64_t{1} << 20;
constexpr int kThreadNice = 10;

}  // namespace

DocumentDisk::DocumentDisk(Files& files, const std::string& folder, const KvShape& expected,
                           int64_t bytes_max, std::function<void()> wake)
    : directory_(files, folder, expected, bytes_max),
      findings_(directory_.findings()),
      wake_(std::move(wake)) {}

DocumentDisk::~DocumentDisk() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void DocumentDisk::push(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    ++open_;
  }
  posted_.notify_one();
}

void DocumentDisk::post(DocumentStore::FileWork work) {
  Task task;
  task.key = work.key;
  task.work = std::make_unique<DocumentStore::FileWork>(std::move(work));
  push(std::move(task));
}

void DocumentDisk::post_read(const FileKey& key, std::shared_ptr<const Document> blank) {
  push({nullptr, key, std::move(blank)});
}

std::vector<DocumentDisk::Done> DocumentDisk::take_done() {
  const std::lock_guard lock(mutex_);
  open_ -= static_cast<int64_t>(done_.size());
  return std::exchange(done_, {});
}

bool DocumentDisk::idle() const {
  const std::lock_guard lock(mutex_);
  return open_ == 0;
}

void DocumentDisk::start() {
  thread_ = std::thread([this] {
    // Of this thread alone, on Linux. Without effect it is merely less polite.
    static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kThreadNice));
    while (true) {
      {
        std::unique_lock lock(mutex_);
        posted_.wait(lock, [&] { return stopping_ || !tasks_.empty() || current_ != nullptr; });
        if (stopping_) {
          return;
        }
      }
      run_slice();
    }
  });
}

bool DocumentDisk::run_slice() {
  if (current_ == nullptr) {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) {
      return false;
    }
    current_ = std::make_unique<Current>();
    current_->task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  using Kind = DocumentStore::FileWork::Kind;
  const auto& work = current_->task.work;
  const Done::Kind kind = work == nullptr              ? Done::Kind::kRead
                          : work->kind == Kind::kWrite ? Done::Kind::kWritten
                                                       : Done::Kind::kChanged;
  try {
    if (!step()) {
      finish(kind, "");
    }
  } catch (const Error& error) {
    if (kind == Done::Kind::kRead) {
      directory_.set_aside(current_->task.key, error.what());
    }
    finish(kind, error.what());
  }
  return true;
}

// False when the current task is done.
bool DocumentDisk::step() {
  using Kind = DocumentStore::FileWork::Kind;
  Task& task = current_->task;
  if (task.work == nullptr) {
    return step_read();
  }
  switch (task.work->kind) {
    case Kind::kWrite:
      return step_write();
    case Kind::kUpdate:
      directory_.update(task.key, task.work->listing);
      return false;
    case Kind::kRemove:
      directory_.remove(task.key);
      return false;
    case Kind::kAdopt:
      directory_.adopt(task.key, task.work->file_bytes);
      return false;
  }
  return false;
}

bool DocumentDisk::step_write() {
  if (current_->write == nullptr) {
    DocumentStore::FileWork& work = *current_->task.work;
    CHECK(work.image.has_value());
    current_->write =
        directory_.write(current_->task.key, std::move(work.image.value()), work.listing);
    if (current_->write == nullptr) {
      throw Error(ErrorKind::kOutput, "no room among the document files");
    }
  }
  return current_->write->step(kSliceBytes);
}

bool DocumentDisk::step_read() {
  if (current_->reader == nullptr) {
    current_->reader = directory_.read(current_->task.key);
    current_->reader->fill(*current_->task.blank);
  }
  return current_->reader->step(kSliceBytes);
}

void DocumentDisk::finish(Done::Kind kind, const std::string& error) {
  Done done{kind, current_->task.key, error, nullptr, nullptr};
  if (kind == Done::Kind::kRead) {
    done.document = std::move(current_->task.blank);
    if (error.empty()) {
      done.scores = current_->reader->scores();
    }
  } else {
    done.document = std::move(current_->task.work->pages);
  }
  current_.reset();
  {
    const std::lock_guard lock(mutex_);
    done_.push_back(std::move(done));
  }
  if (wake_) {
    wake_();
  }
}

}  // namespace pagezip
