// Which documents are in memory: who waits for one, what is read back, what is written.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/engine_live.h"

namespace pagezip {

void Engine::open_folder() {
  const KvShape shape = make_kv_shape(options_.identity, model_.kv_groups(), pool_.geometry());
  disk_ = std::make_unique<DocumentDisk>(*options_.files, options_.folder, shape,
                                         options_.file_bytes_max, [this] { post([] {}, false); });
  for (const DocumentDirectory::File& file : disk_->take_files()) {
    store_.add_file(file.key, file.header, clock_.unix_s());
  }
}

// False if nothing moved.
bool Engine::run_documents() {
  if (const int64_t now_s = clock_.unix_s(); now_s != expired_s_) {
    expired_s_ = now_s;
    store_.expire(now_s);
  }
  bool moved = disk_ != nullptr && run_files();
  moved |= serve_waiting();
  return moved;
}

bool Engine::run_files() {
  bool moved = restore();
  for (DocumentDisk::Done& done : disk_->take_done()) {
    take_done(std::move(done));
    moved = true;
  }
  while (auto work = store_.next_file_work()) {
    disk_->post(std::move(*work));
    moved = true;
  }
  return (!disk_->has_thread() && disk_->run_slice()) || moved;
}

void Engine::take_done(DocumentDisk::Done done) {
  scheduler_.memory_changed();
  switch (done.kind) {
    case DocumentDisk::Done::Kind::kWritten:
      done.error.empty() ? store_.written(done.key) : store_.write_failed(done.key);
      break;
    case DocumentDisk::Done::Kind::kRead:
      if (done.error.empty()) {
        store_.restored(done.key, std::move(done.document), done.scores);
      } else {
        store_.lost(done.key);
      }
      break;
    case DocumentDisk::Done::Kind::kChanged:
      break;
  }
  if (!done.error.empty()) {
    file_errors_.push_back(std::move(done.error));
  }
}

// Writes what is due, so that it survives the engine.
void Engine::finish_files() {
  while (disk_ != nullptr) {
    const bool moved = run_files();
    if (disk_->has_thread()) {
      if (disk_->idle()) {
        return;
      }
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [&] { return !inbox_.empty(); });
      lock.unlock();
      run_commands();
    } else if (!moved) {
      return;
    }
  }
}

void Engine::wait_for_document(Waiting waiting) {
  if (static_cast<int64_t>(waiting_.size()) >= options_.scheduler.queue_max) {
    return waiting.refuse(RefusalKind::kBusy, "too many requests wait for their documents");
  }
  waiting_.push_back(std::move(waiting));
  serve_waiting();
}

// In order of arrival; those behind may go first only if that leaves the room of those before.
bool Engine::serve_waiting() {
  int64_t kept_blocks = 0;
  size_t served = 0;
  for (size_t i = 0; i < waiting_.size();) {
    const auto take = [&] {
      Waiting waiting = std::move(waiting_[i]);
      waiting_.erase(waiting_.begin() + static_cast<int64_t>(i));
      ++served;
      return waiting;
    };
    const auto picked = store_.pick(waiting_[i].document, waiting_[i].keep_ratio);
    const FileKey key = picked.value_or(FileKey{});
    const DocumentStore::Lease lease =
        picked ? store_.lease(key, kept_blocks, clock_.unix_s()) : DocumentStore::Lease{};
    switch (lease.answer) {
      case DocumentStore::Answer::kLeased: {
        const Waiting waiting = take();
        waiting.serve(lease, waiting.was_on_disk);
        break;
      }
      case DocumentStore::Answer::kNotThere: {
        const Waiting waiting = take();
        waiting.refuse(RefusalKind::kNotFound, "document " + waiting.document + " is gone");
        break;
      }
      case DocumentStore::Answer::kOnDisk:
        if (store_.blocks_of(key) > pool_.blocks_total()) {
          take().refuse(RefusalKind::kTooLarge, "the document is larger than the KV memory");
          break;
        }
        if (!store_.is_restoring(key) &&
            std::find(restores_.begin(), restores_.end(), key) == restores_.end()) {
          restores_.push_back(key);
        }
        kept_blocks += store_.blocks_of(key);
        waiting_[i].was_on_disk = true;
        ++i;
        break;
      case DocumentStore::Answer::kNoRoom:
        kept_blocks = DocumentStore::kNoRoomTaken;
        ++i;
        break;
    }
  }
  return served > 0;
}

// Gathers room for the next version to be read: as it comes free, so that a stream of small
// requests can't take it away for ever.
bool Engine::restore() {
  bool moved = false;
  while (!restores_.empty()) {
    const FileKey key = restores_.front();
    const int64_t blocks = store_.blocks_of(key);
    if (const int64_t missing = blocks - gathered_.blocks(); missing > 0) {
      scheduler_.make_room(missing);
      const int64_t some = std::min(missing, pool_.blocks_available());
      std::optional<BlockReservation> part = pool_.reserve(some);
      CHECK(part.has_value());
      gathered_.merge(std::move(*part));
      if (some < missing) {
        return moved;
      }
    }
    std::shared_ptr<const Document> blank = store_.make_blank(key, pool_, gathered_);
    gathered_ = BlockReservation();
    restores_.pop_front();
    if (blank != nullptr) {
      disk_->post_read(key, std::move(blank));
      moved = true;
    }
  }
  return moved;
}

int64_t Engine::reclaim(int64_t blocks, bool urgent) {
  int64_t freed = 0;
  if (urgent) {
    freed = std::exchange(gathered_, BlockReservation()).blocks();
  }
  return freed + (freed < blocks ? store_.evict(blocks - freed) : 0);
}

}  // namespace pagezip
