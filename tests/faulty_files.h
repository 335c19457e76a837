// A disk in memory that loses power.
//
// It knows what a real one would still have: of a file what was synced, of a name what it was when
// its folder was synced last. All later writes and names may survive or not, each for itself, and a
// write in parts. Calls are counted; at a chosen one the power goes, or the call fails.
#pragma once

#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "paging/files.h"

namespace pagezip {

class FaultyFiles : public Files {
 public:
  enum class Fault : uint8_t {
    kNone,
    kPowerLoss,   // the call is done in part or not, and it and all later ones fail
    kIoError,     // EIO
    kNoSpace,     // ENOSPC, of calls that write
    kShortWrite,  // no error: half of the bytes are written
  };
  enum class Survival : uint8_t { kSynced, kEverything, kRandom };

  /// `fault` happens in call number `call` (from 1), and in those after it if it `stays`.
  void set_fault(Fault fault, int64_t call, bool stays = false);
  int64_t calls() const { return calls_; }
  bool is_off() const { return is_off_; }

  /// The disk after the power came back.
  std::unique_ptr<FaultyFiles> restarted(Survival survival, Prng& prng) const;
  /// Names of files, sorted.
  std::vector<std::string> names() const;

  Opened open(const std::string& path, OpenMode mode) override;
  int rename(const std::string& from, const std::string& to) override;
  int remove(const std::string& path) override;
  int sync_folder(const std::string& folder) override;
  int list(const std::string& folder, std::vector<std::string>& names) override;

 private:
  using Bytes = std::vector<std::byte>;
  struct Inode {
    Bytes now;
    Bytes synced;
    std::vector<std::pair<int64_t, Bytes>> unsynced;  // offset, bytes
  };
  using InodePtr = std::shared_ptr<Inode>;
  class Handle;

  /// Counts a call. Returns the error it ends with, or 0; `effect` is what the power may interrupt.
  int begin_call(bool writes, const std::function<void(double share)>& effect);
  void set_name(const std::string& path, InodePtr inode);
  static void apply(Bytes& target, int64_t offset, std::span<const std::byte> bytes);

  Fault fault_ = Fault::kNone;
  int64_t fault_call_ = 0;
  bool fault_stays_ = false;
  int64_t calls_ = 0;
  bool is_off_ = false;
  std::map<std::string, InodePtr> names_;
  std::map<std::string, InodePtr> synced_names_;
  std::map<std::string, std::vector<InodePtr>>
      unsynced_names_;  // what each name was since; or null
  Prng tears_{1};
};

}  // namespace pagezip
