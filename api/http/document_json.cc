// A document as clients see it.
#include <fmt/format.h>

#include <algorithm>

#include "api/http/documents.h"

namespace pagezip::http {
namespace {

const char* status_of(JobStage stage) {
  switch (stage) {
    case JobStage::kQueued:
      return "queued";
    case JobStage::kPrefill:
      return "prefilling";
    case JobStage::kScore:
      return "scoring";
    case JobStage::kSelect:
    case JobStage::kCompact:
      return "compacting";
  }
  return "";
}

json::object progress_json(const DocumentTask::Status& status) {
  json::object progress;
  progress["stages"] = json::array{"prefill", "score", "compact"};
  progress["current"] =
      name_of(status.stage == JobStage::kSelect ? JobStage::kCompact : status.stage);
  progress["processed"] = status.done;
  progress["total"] = status.total;
  // Of a whole that is prefill, twice as much scoring, and little else.
  const double part =
      status.total > 0 ? static_cast<double>(status.done) / static_cast<double>(status.total) : 0;
  double value = 0;
  switch (status.stage) {
    case JobStage::kQueued:
      break;
    case JobStage::kPrefill:
      value = 0.33 * part;
      break;
    case JobStage::kScore:
      value = 0.33 + 0.65 * part;
      break;
    case JobStage::kSelect:
    case JobStage::kCompact:
      value = 0.98 + 0.02 * part;
  }
  progress["value"] = value;
  return progress;
}

json::object metadata_json(const std::map<std::string, std::string>& metadata) {
  json::object pairs;
  for (const auto& [key, value] : metadata) {
    pairs[key] = value;
  }
  return pairs;
}

json::object version_json(const DocumentStore::Version& version, const KvGeometry& geometry) {
  json::object one;
  one["ratio"] = version.identity.full ? 1 : version.identity.keep_ratio;
  one["exact"] = version.identity.full;
  one["pages"] = version.blocks;
  one["kv_bytes"] = version.blocks * geometry.block_bytes();
  one["tier"] = version.resident ? "memory" : version.stored ? "disk" : "none";
  one["durable"] = version.stored;
  one["file_bytes"] = version.file_bytes;
  one["readers"] = version.readers;
  one["hits"] = version.uses;
  return one;
}

void add_stored(json::object& document, const DocumentInfo& info, const Service& service) {
  const DocumentStore::Info& stored = info.stored;
  const KvGeometry& geometry = service.geometry();
  json::array versions;
  int64_t hits = 0;
  const DocumentStore::Version* smallest = nullptr;
  bool resident = false;
  bool on_disk = false;
  bool durable = !stored.versions.empty();
  for (const DocumentStore::Version& version : stored.versions) {
    versions.push_back(version_json(version, geometry));
    hits += version.uses;
    resident = resident || version.resident;
    on_disk = on_disk || version.stored;
    durable = durable && version.stored;
    if (smallest == nullptr || version.blocks < smallest->blocks) {
      smallest = &version;
    }
  }
  const int64_t tokens = stored.identity->logical_length();
  json::object compression;
  compression["method"] = "kvzip";
  compression["ratio"] =
      smallest == nullptr || smallest->identity.full ? 1 : smallest->identity.keep_ratio;
  compression["budget"] = smallest != nullptr && smallest->identity.selector == "uniform"
                              ? "per_head_uniform"
                              : "global";
  compression["scores_kept"] = stored.has_scores;
  document["compression"] = std::move(compression);
  json::object usage;
  usage["tokens"] = tokens;
  usage["kv_bytes_full"] = full_blocks(tokens, service.model().model().kv_groups(),
                                       service.options().engine.page_tokens) *
                           geometry.block_bytes();
  usage["kv_bytes"] = smallest == nullptr ? 0 : smallest->blocks * geometry.block_bytes();
  usage["pages"] = smallest == nullptr ? 0 : smallest->blocks;
  usage["hits"] = hits;
  document["usage"] = std::move(usage);
  document["versions"] = std::move(versions);
  document["residency"] = {{"tier", resident  ? "memory"
                                    : on_disk ? "disk"
                                              : "none"},
                           {"durable", durable}};
  document["pinned"] = stored.listing.pinned;
  document["imported"] = stored.listing.imported;
  document["revision"] = stored.listing.revision;
  document["last_active_at"] = stored.last_use_s;
  if (stored.listing.scope.kind == Scope::Kind::kGroup) {
    document["group"] = stored.listing.scope.name;
  }
  if (stored.listing.ttl_s > 0) {
    document["expires_after"] = {{"anchor", "last_active_at"}, {"seconds", stored.listing.ttl_s}};
    document["expires_at"] = stored.last_use_s + stored.listing.ttl_s;
  }
}

}  // namespace

int64_t full_blocks(int64_t tokens, const std::vector<KvGroup>& groups, int64_t page_tokens) {
  int64_t blocks = 0;
  for (const KvGroup& group : groups) {
    const int64_t first = group.window == 0 ? 0 : std::max<int64_t>(tokens - group.window + 1, 0);
    blocks += (tokens + page_tokens - 1) / page_tokens - first / page_tokens;
  }
  return blocks;
}

json::object document_json(const std::string& id, const DocumentInfo* info, const DocumentJob* job,
                           const Service& service) {
  json::object document;
  document["id"] = id;
  document["object"] = "document";
  document["created_at"] = info != nullptr ? info->stored.listing.created_s : job->created_s;
  document["revision"] = 0;
  document["model"] = service.model_name();
  document["name"] = info != nullptr ? info->stored.listing.name : job->name;
  document["metadata"] =
      metadata_json(info != nullptr ? info->stored.listing.metadata : job->metadata);
  document["status"] = "ready";
  document["progress"] = nullptr;
  document["pinned"] = false;
  document["imported"] = false;
  document["expires_after"] = nullptr;
  document["expires_at"] = nullptr;
  document["error"] = nullptr;
  if (info != nullptr) {
    add_stored(document, *info, service);
  }
  const std::shared_ptr<DocumentTask>& task = info != nullptr && info->task != nullptr ? info->task
                                              : job != nullptr                         ? job->task
                                                                                       : nullptr;
  if (task == nullptr) {
    return document;
  }
  const DocumentTask::Status status = task->status();
  if (status.state == DocumentTask::State::kWorking) {
    document["progress"] = progress_json(status);
    // One version more is no reason to call a document anything but ready.
    const bool is_new = job != nullptr && job->task == task;
    document["status"] = is_new ? status_of(status.stage) : "ready";
  } else if (info == nullptr) {
    document["status"] = job->cancelled                                 ? "cancelled"
                         : status.state == DocumentTask::State::kFailed ? "failed"
                                                                        : "expired";
    document["error"] = json::value(nullptr);
    if (!status.error.empty() && !job->cancelled) {
      document["error"] = {{"code", "document_failed"}, {"message", status.error}};
    }
  }
  return document;
}

}  // namespace pagezip::http
