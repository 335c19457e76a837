// What the engine knows and makes of documents.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_live.h"

namespace pagezip {
namespace {

// Whether all pairs of `version`, cut by the same scores, are among those of `source`.
bool has_all(const VersionIdentity& source, const VersionSpec& version) {
  const VersionIdentity wanted = version_identity(version);
  return source.full ||
         (source.selector == wanted.selector && source.min_per_head == wanted.min_per_head &&
          source.keep_ratio >= wanted.keep_ratio);
}

}  // namespace

// ---- any thread ----

template <typename Result>
std::future<Result> Engine::ask(std::function<Result()> question) {
  auto promise = std::make_shared<std::promise<Result>>();
  std::future<Result> answer = promise->get_future();
  post([promise, question = std::move(question)] { promise->set_value(question()); }, false);
  return answer;
}

void Engine::check(const DocumentRequest& request) const {
  const int vocab = model_.config().vocab;
  check_tokens(request.prefix, vocab);
  check_tokens(request.context, vocab);
  const auto tokens = static_cast<int64_t>(request.context.size());
  if (tokens == 0) {
    throw Error(ErrorKind::kUsage, "the document is empty");
  }
  if (!is_document_id(request.listing.id) || !is_valid(request.listing)) {
    throw Error(ErrorKind::kUsage, "the document's id, name, scope or time to live is not valid");
  }
  int64_t repeat = 0;
  if (!request.parent.empty() && !request.prefix.empty()) {
    throw Error(ErrorKind::kUsage, "a document that extends another has no system prefix");
  }
  if (!request.versions.empty()) {
    repeat = request.prompts.rows_max(tokens, options_.chunk_tokens, !request.parent.empty());
    if (model_.kv_groups().front().window > 0) {
      throw Error(ErrorKind::kUsage,
                  "the model has only sliding-window layers: there is nothing to compress");
    }
    if (repeat > options_.chunk_tokens + kRepeatRows) {
      throw Error(ErrorKind::kUsage, "the repeat prompt is too long");
    }
  }
  for (const VersionSpec& version : request.versions) {
    validate_keep_ratio(tokens, version.keep_ratio);
  }
  const auto all = static_cast<int64_t>(request.prefix.size()) + tokens + repeat;
  if (all > context_max_) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the document is too long: with its repeat prompt it takes {} of {} "
                            "positions",
                            all, context_max_));
  }
}

std::shared_ptr<DocumentTask> Engine::create_document(DocumentRequest request) {
  if (request.listing.scope.name.empty()) {
    request.listing.scope = {Scope::Kind::kTenant, request.tenant};
  }
  check(request);
  auto task = std::make_shared<DocumentTask>(next_id_++);
  const bool posted =
      post([this, request = std::move(request), task] { begin(request, task); }, true);
  return posted ? task : nullptr;
}

std::shared_ptr<DocumentTask> Engine::add_version(const Requester& requester, const std::string& id,
                                                  const RepeatPrompts& prompts,
                                                  const VersionSpec& spec) {
  validate_keep_ratio(1, spec.keep_ratio);
  auto task = std::make_shared<DocumentTask>(next_id_++);
  const bool posted = post([=, this] { begin_version(requester, id, prompts, spec, task); }, true);
  return posted ? task : nullptr;
}

std::future<std::optional<DocumentInfo>> Engine::document(Requester requester, std::string id) {
  return ask<std::optional<DocumentInfo>>([this, requester = std::move(requester),
                                           id = std::move(id)] { return describe(id, requester); });
}

std::future<std::vector<DocumentInfo>> Engine::documents(Requester requester) {
  return ask<std::vector<DocumentInfo>>([this, requester = std::move(requester)] {
    std::vector<DocumentInfo> infos;
    for (const std::string& id : store_.ids()) {
      if (auto info = describe(id, requester)) {
        infos.push_back(std::move(*info));
      }
    }
    return infos;
  });
}

std::future<std::optional<VersionDetail>> Engine::version_detail(Requester requester,
                                                                 std::string id,
                                                                 std::optional<double> keep_ratio) {
  return ask<std::optional<VersionDetail>>(
      [this, requester = std::move(requester), id = std::move(id), keep_ratio] {
        std::optional<VersionDetail> detail;
        const std::optional<FileKey> key =
            is_theirs(id, requester) ? store_.pick(id, keep_ratio) : std::nullopt;
        if (key.has_value()) {
          detail.emplace();
          detail->version = *store_.version(*key);
          detail->identity = stored(id).identity;
          detail->shape = *store_.shape(*key);
          detail->scores = store_.scores(id);
          if (store_.is_stored(*key)) {
            detail->file = options_.folder + "/" + DocumentDirectory::file_name(*key);
          }
        }
        return detail;
      });
}

std::future<std::string> Engine::find_same(DocumentRequest request) {
  if (request.listing.scope.name.empty()) {
    request.listing.scope = {Scope::Kind::kTenant, request.tenant};
  }
  return ask<std::string>([this, request = std::move(request)] {
    return store_.find_same(request.listing.scope, identity_of(request));
  });
}

std::future<ChangeAnswer> Engine::change_document(Requester requester, std::string id,
                                                  DocumentChange change) {
  if ((change.name && !is_plain_text(*change.name, DocumentListing::kNameBytesMax)) ||
      (change.ttl_s && *change.ttl_s < 0) ||
      (change.metadata && !is_valid_metadata(*change.metadata))) {
    throw Error(ErrorKind::kUsage,
                "the document's new name, time to live or metadata is not valid");
  }
  return ask<ChangeAnswer>(
      [this, requester = std::move(requester), id = std::move(id), change = std::move(change)] {
        if (!is_theirs(id, requester)) {
          return ChangeAnswer::kNotFound;
        }
        if (change.pinned && !store_.set_pinned(id, *change.pinned)) {
          return ChangeAnswer::kNoRoomToPin;
        }
        if (change.name) {
          store_.rename(id, *change.name);
        }
        if (change.ttl_s) {
          store_.set_ttl(id, *change.ttl_s);
        }
        if (change.metadata) {
          store_.set_metadata(id, *change.metadata);
        }
        return ChangeAnswer::kChanged;
      });
}

std::future<bool> Engine::drop_document(Requester requester, std::string id) {
  return ask<bool>([this, requester = std::move(requester), id = std::move(id)] {
    return is_theirs(id, requester) && drop(id);
  });
}

std::future<FileKey> Engine::make_file_key(std::string id) {
  return ask<FileKey>([this, id = std::move(id)] { return store_.make_key(id); });
}

std::future<DocumentStore::Added> Engine::import_document(FileKey key, DocumentHeader header) {
  return ask<DocumentStore::Added>([this, key = std::move(key), header = std::move(header)] {
    return store_.import_file(key, header, clock_.unix_s());
  });
}

std::span<const DocumentDirectory::Finding> Engine::findings() const {
  return disk_ == nullptr ? std::span<const DocumentDirectory::Finding>() : disk_->findings();
}

std::future<std::vector<std::string>> Engine::take_file_errors() {
  return ask<std::vector<std::string>>([this] { return std::exchange(file_errors_, {}); });
}

// ---- engine thread ----

bool Engine::is_theirs(const std::string& id, const Requester& requester) const {
  const DocumentListing* listing = store_.listing(id);
  return listing != nullptr && may_use(listing->scope, requester);
}

DocumentStore::Info Engine::stored(const std::string& id) const {
  std::optional<DocumentStore::Info> info = store_.info(id);
  CHECK(info.has_value());
  return *std::move(info);
}

std::optional<DocumentInfo> Engine::describe(const std::string& id,
                                             const Requester& requester) const {
  if (!is_theirs(id, requester)) {
    return std::nullopt;
  }
  DocumentInfo info{stored(id), nullptr};
  for (const auto& [work, live] : tasks_) {
    if (live.document == id) {
      info.task = live.task;
    }
  }
  return info;
}

// Who asks for a ratio gets the version nearest to it of all that there will be.
bool Engine::is_ready(const std::string& id, std::optional<double> keep_ratio) const {
  const std::optional<FileKey> now = store_.pick(id, keep_ratio);
  if (!now.has_value() || !keep_ratio.has_value()) {
    return now.has_value();
  }
  const auto distance = [&](double ratio) { return std::abs(ratio - *keep_ratio); };
  const double nearest = distance(store_.version(*now)->keep_ratio);
  return std::none_of(tasks_.begin(), tasks_.end(), [&](const auto& task) {
    const LiveTask& live = task.second;
    return live.document == id &&
           std::any_of(live.versions.begin(), live.versions.end(),
                       [&](const VersionSpec& v) { return distance(v.keep_ratio) < nearest; });
  });
}

bool Engine::drop(const std::string& id) {
  const bool found = store_.drop(id);
  for (const auto& [work, live] : tasks_) {
    if (live.document == id) {
      scheduler_.cancel(work);
    }
  }
  scheduler_.memory_changed();
  return found;
}

DocumentIdentity Engine::identity_of(const DocumentRequest& request) const {
  DocumentIdentity identity;
  identity.shape = make_kv_shape(options_.identity, model_.kv_groups(), pool_.geometry());
  identity.prefix_ids = request.prefix;
  identity.context_ids = request.context;
  identity.scorer = "kvzip";
  identity.scorer_version = kScorerVersion;
  identity.chunk_tokens = options_.chunk_tokens;
  identity.provenance = options_.provenance;
  return identity;
}

void Engine::begin(const DocumentRequest& request, const std::shared_ptr<DocumentTask>& task) {
  if (request.parent.empty()) {
    return add_document(request, {}, identity_of(request), task);
  }
  if (!is_theirs(request.parent, {request.tenant, request.groups})) {
    return task->fail("no document " + request.parent);
  }
  if (!is_ready(request.parent, request.parent_keep_ratio)) {
    return task->fail("document " + request.parent + " is not ready");
  }
  Waiting waiting{task->id(), request.parent, request.parent_keep_ratio, {}, {}, false};
  waiting.serve = [this, request, task](const DocumentStore::Lease& lease, bool) {
    begin_child(request, lease, task);
  };
  waiting.refuse = [task](RefusalKind, const std::string& why) { task->fail(why); };
  wait_for_document(std::move(waiting));
}

void Engine::begin_child(const DocumentRequest& request, const DocumentStore::Lease& parent,
                         const std::shared_ptr<DocumentTask>& task) {
  const auto tokens = static_cast<int64_t>(request.context.size());
  const int64_t repeat =
      request.versions.empty() ? 0 : request.prompts.rows_max(tokens, options_.chunk_tokens, true);
  if (parent.document->logical_length() + tokens + repeat > context_max_) {
    return task->fail(
        fmt::format("the document is too long behind another: {} and {} of {} "
                    "positions",
                    parent.document->logical_length(), tokens + repeat, context_max_));
  }
  if (parent.document->segments() >= Document::kSegmentsMax) {
    return task->fail(
        fmt::format("document {} stands behind {} others already: make one document "
                    "of them all",
                    request.parent, parent.document->segments() - 1));
  }
  DocumentIdentity identity = identity_of(request);
  DocumentIdentity behind = *stored(parent.key.id).identity;
  behind.version = parent.version;
  identity.parent = parent_record(behind);
  add_document(request, parent, std::move(identity), task);
}

// `parent` of a document that stands alone has none.
void Engine::add_document(const DocumentRequest& request, const DocumentStore::Lease& parent,
                          DocumentIdentity identity, const std::shared_ptr<DocumentTask>& task) {
  DocumentListing listing = request.listing;
  const int64_t now_s = clock_.unix_s();
  listing.created_s = now_s;
  listing.revision = 0;
  switch (store_.add(listing, std::move(identity), now_s)) {
    case DocumentStore::Added::kExists:
      return task->fail("document " + listing.id + " exists already");
    case DocumentStore::Added::kTooMany:
      return task->fail("there are too many documents");
    case DocumentStore::Added::kAdded:
      break;
  }
  DocumentSpec spec;
  spec.priority = request.priority;
  spec.tenant = request.tenant;
  spec.space = space(request.tenant);
  spec.prefix = request.prefix;
  spec.context = request.context;
  spec.versions = request.versions;
  std::vector<TokenId> before;
  if (parent.document != nullptr) {
    before = stored(parent.key.id).identity->context_ids;
    spec.space += chain_of(parent.key);
    // Not the lease: a document must not hold its parent against others.
    spec.parent = store_.pages(parent.key);
  }
  if (!spec.versions.empty()) {
    spec.chunks = make_score_chunks(spec.context, request.prompts, options_.chunk_tokens, before);
  }
  LiveTask live{listing.id,
                task,
                request.versions,
                true,
                false,
                request.keep_scores,
                request.listing.pinned,
                parent.document};
  live.keeps_full = request.keep_full || request.versions.empty();
  submit_job(std::move(spec), std::move(live));
}

void Engine::submit_job(DocumentSpec spec, LiveTask live) {
  spec.id = live.task->id();
  const Admission admission = scheduler_.submit(std::move(spec), clock_.now_us());
  if (admission == Admission::kAccepted) {
    trace_.submitted(live.task->id(), true, clock_.now_us());
    tasks_[live.task->id()] = std::move(live);
    return;
  }
  if (live.is_new) {
    store_.drop(live.document);
  }
  live.task->fail(admission == Admission::kBusy
                      ? "too many documents wait"
                      : "the document needs more KV memory than documents in use leave to others");
}

void Engine::begin_version(const Requester& requester, const std::string& id,
                           const RepeatPrompts& prompts, const VersionSpec& version,
                           const std::shared_ptr<DocumentTask>& task) {
  if (!is_theirs(id, requester)) {
    return task->fail("no document " + id);
  }
  const DocumentStore::Info info = stored(id);
  const auto tokens = static_cast<int64_t>(info.identity->context_ids.size());
  if (tokens + static_cast<int64_t>(info.identity->prefix_ids.size()) +
          prompts.rows_max(tokens, options_.chunk_tokens) >
      context_max_) {
    return task->fail("the document is too long to be scored");
  }
  for (const DocumentStore::Version& there : info.versions) {
    if (there.identity == version_identity(version)) {
      return task->fail("document " + id + " has this version already");
    }
  }
  LiveTask live{id, task, {version}, false, false, true, false, nullptr};
  if (!info.identity->parent.empty()) {
    return task->fail("document " + id + " extends another: its versions are made with it");
  }
  const auto source = std::find_if(
      info.versions.begin(), info.versions.end(),
      [&](const DocumentStore::Version& there) { return has_all(there.identity, version); });
  const auto make_again = [=, this, tenant = requester.tenant] {
    DocumentSpec spec = spec_of_version(tenant, live);
    spec.chunks = make_score_chunks(spec.context, prompts, options_.chunk_tokens);
    submit_job(std::move(spec), live);
  };
  if (!info.has_scores || source == info.versions.end()) {
    return make_again();
  }
  Waiting waiting{task->id(), id, source->identity.keep_ratio, {}, {}, false};
  waiting.serve = [=, this, tenant = requester.tenant](const DocumentStore::Lease& lease, bool) {
    // What was chosen may have gone meanwhile, and with it the scores.
    if (store_.scores(id) == nullptr || !has_all(lease.version, version)) {
      return make_again();
    }
    DocumentSpec spec = spec_of_version(tenant, live);
    spec.source = lease.document;
    if (!lease.version.full) {
      spec.source_cut = version_spec(lease.version);
    }
    submit_job(std::move(spec), live);
  };
  waiting.refuse = [task](RefusalKind, const std::string& why) { task->fail(why); };
  wait_for_document(std::move(waiting));
}

DocumentSpec Engine::spec_of_version(const std::string& tenant, const LiveTask& live) const {
  const DocumentStore::Info info = stored(live.document);
  DocumentSpec spec;
  spec.tenant = tenant;
  spec.space = space(tenant);
  spec.prefix = info.identity->prefix_ids;
  spec.context = info.identity->context_ids;
  spec.versions = live.versions;
  spec.scores = store_.scores(live.document);
  return spec;
}

void Engine::on_job(const Event& event) {
  const auto found = tasks_.find(event.key.request);
  CHECK(found != tasks_.end());
  const LiveTask& live = found->second;
  DocumentTask& task = *live.task;
  const bool is_there = store_.contains(live.document);  // it may have been dropped meanwhile
  switch (event.kind) {
    case Event::Kind::kProgress:
      task.update([&](DocumentTask::Status& status) {
        status.stage = event.stage;
        status.done = event.done;
        status.total = event.total;
      });
      break;
    case Event::Kind::kFullReady:
      task.update(
          [&](DocumentTask::Status& status) { status.full_bytes = event.document->kv_bytes(); });
      if (is_there && live.is_new) {
        store_.publish(live.document, kFullVersion, event.document, live.keeps_full,
                       clock_.unix_s());
      }
      break;
    case Event::Kind::kScored:
      if (is_there && live.keeps_scores) {
        store_.keep_scores(live.document, event.scores);
      }
      break;
    case Event::Kind::kVersionReady: {
      const VersionSpec& spec = live.versions.at(event.version);
      if (is_there) {
        store_.publish(live.document, version_identity(spec), event.document, true,
                       clock_.unix_s());
      }
      task.update([&](DocumentTask::Status& status) {
        status.versions.push_back({spec, event.document->kv_bytes()});
      });
      break;
    }
    case Event::Kind::kJobDone:
    case Event::Kind::kJobFailed:
      end_task(event.key.request, event.error);
      break;
    default:
      break;
  }
}

void Engine::end_task(WorkId id, const std::string& error) {
  const LiveTask live = std::move(tasks_.extract(id).mapped());
  if (!error.empty()) {
    if (live.is_new) {
      store_.drop(live.document);
    }
    return live.task->fail(error);
  }
  // Who reads the full version finishes on it.
  if (live.is_new && !live.keeps_full) {
    store_.retire(live.document, kFullVersion);
  }
  if (live.pins) {
    store_.set_pinned(live.document, true);
  }
  live.task->update(
      [](DocumentTask::Status& status) { status.state = DocumentTask::State::kDone; });
}

}  // namespace pagezip
