// Tier 3 of the C ABI: the documents of a serving engine.
#include <future>
#include <memory>
#include <utility>

#include "api/c/engine_handles.h"

using namespace pagezip;         // NOLINT(google-build-using-namespace): handles and entries are
using namespace pagezip::c_api;  // NOLINT(google-build-using-namespace): outside of it

struct pagezip_task {
  std::weak_ptr<RunningEngine> engine;
  std::shared_ptr<DocumentTask> task;
  std::string error;
};

struct pagezip_document_list {
  std::vector<DocumentInfo> documents;
  int64_t block_bytes;
};

namespace pagezip::c_api {
namespace {

DocumentRequest document_request(const OpenModel& model, const pagezip_compress_request* from) {
  const auto c = read_struct(from, "pagezip_compress_request");
  require(c.id != nullptr && c.id[0] != '\0', "a document has no id");
  require(c.keep_ratios != nullptr || c.keep_ratio_count == 0, "keep_ratios is null");
  Requester requester = requester_of(c.requester);
  DocumentRequest request;
  request.priority = c.priority;
  request.listing.id = c.id;
  request.listing.name = name_of(c.name);
  request.listing.ttl_s = c.ttl_s;
  request.listing.pinned = c.pinned != 0;
  if (c.group != nullptr) {
    request.listing.scope = {Scope::Kind::kGroup, c.group};
    require(may_use(request.listing.scope, requester), "group is none of the requester's");
  }
  request.parent = name_of(c.parent);
  request.parent_keep_ratio = keep_ratio_of(c.parent_keep_ratio);
  request.tenant = std::move(requester.tenant);
  request.groups = std::move(requester.groups);
  if (request.parent.empty()) {
    request.prefix.assign(model.frame.prefix().begin(), model.frame.prefix().end());
  }
  request.context = model.frame.document(text_of(c.text, c.text_bytes, "text"));
  request.prompts = model.frame.repeat();
  for (size_t i = 0; i < c.keep_ratio_count; ++i) {
    request.versions.push_back({c.keep_ratios[i]});
  }
  request.keep_full = c.keep_full != 0;
  return request;
}

pagezip_task_status status_of(pagezip_task& of) {
  const DocumentTask::Status from = of.task->status();
  of.error = from.error;
  pagezip_task_status status{};
  status.state = from.state == DocumentTask::State::kWorking ? PAGEZIP_TASK_WORKING
                 : from.state == DocumentTask::State::kDone  ? PAGEZIP_TASK_DONE
                                                             : PAGEZIP_TASK_FAILED;
  status.stage = name_of(from.stage);
  status.done = from.done;
  status.total = from.total;
  status.full_bytes = from.full_bytes;
  for (const DocumentTask::Version& version : from.versions) {
    status.bytes += version.kv_bytes;
  }
  status.error = of.error.c_str();
  return status;
}

// `start` gives a task, or null.
template <typename Start>
pagezip_status start_task(pagezip_engine* engine, pagezip_task** task, const Start& start) {
  return guarded([&] {
    require(engine != nullptr && task != nullptr, "engine or task is null");
    auto made = std::make_unique<pagezip_task>();
    made->engine = engine->running;
    made->task = start(*engine->running);
    if (made->task == nullptr) {
      return fail(PAGEZIP_BUSY, "too many commands wait");
    }
    *task = made.release();
    return PAGEZIP_OK;
  });
}

// What the engine says at its next step, which is ours to make if it is driven.
template <typename Result>
Result answer_of(pagezip_engine& engine, std::future<Result> future) {
  while (engine.driven && future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    engine.running->engine.step();
  }
  return future.get();
}

DocumentChange change_of(const pagezip_document_change* from) {
  const auto c = read_struct(from, "pagezip_document_change");
  DocumentChange change;
  if (c.name != nullptr) {
    change.name = c.name;
  }
  if (c.ttl_s != nullptr) {
    change.ttl_s = *c.ttl_s;
  }
  if (c.pinned != nullptr) {
    change.pinned = *c.pinned != 0;
  }
  return change;
}

const DocumentInfo& listed(const pagezip_document_list* list, size_t index) {
  require(list != nullptr && index < list->documents.size(), "list is null, or has fewer entries");
  return list->documents[index];
}

pagezip_listed_document listed_document(const DocumentInfo& info) {
  const DocumentStore::Info& stored = info.stored;
  pagezip_listed_document to{};
  to.id = stored.listing.id.c_str();
  to.name = stored.listing.name.c_str();
  const Scope& scope = stored.listing.scope;
  to.group = scope.kind == Scope::Kind::kGroup ? scope.name.c_str() : nullptr;
  to.created_s = stored.listing.created_s;
  to.last_use_s = stored.last_use_s;
  to.ttl_s = stored.listing.ttl_s;
  to.pinned = stored.listing.pinned ? 1 : 0;
  to.working = info.task != nullptr ? 1 : 0;
  to.has_scores = stored.has_scores ? 1 : 0;
  to.tokens = stored.identity->logical_length();
  to.version_count = stored.versions.size();
  return to;
}

pagezip_listed_version listed_version(const DocumentStore::Version& from, int64_t block_bytes) {
  pagezip_listed_version to{};
  to.keep_ratio = from.identity.keep_ratio;
  to.full = from.identity.full ? 1 : 0;
  to.resident = from.resident ? 1 : 0;
  to.stored = from.stored ? 1 : 0;
  to.bytes = from.blocks * block_bytes;
  to.file_bytes = from.file_bytes;
  to.readers = from.readers;
  to.uses = from.uses;
  return to;
}

}  // namespace
}  // namespace pagezip::c_api

pagezip_status pagezip_engine_compress(pagezip_engine* engine,
                                       const pagezip_compress_request* request,
                                       pagezip_task** task) {
  return start_task(engine, task, [&](RunningEngine& running) {
    return running.engine.create_document(document_request(*running.model, request));
  });
}

pagezip_status pagezip_engine_add_version(pagezip_engine* engine,
                                          const pagezip_requester* requester, const char* id,
                                          double keep_ratio, pagezip_task** task) {
  return start_task(engine, task, [&](RunningEngine& running) {
    require(id != nullptr, "id is null");
    return running.engine.add_version(requester_of(requester), id, running.model->frame.repeat(),
                                      {keep_ratio});
  });
}

pagezip_status pagezip_engine_change_document(pagezip_engine* engine,
                                              const pagezip_requester* requester, const char* id,
                                              const pagezip_document_change* change) {
  return guarded([&] {
    require(engine != nullptr && id != nullptr, "engine or id is null");
    switch (answer_of(*engine, engine->running->engine.change_document(requester_of(requester), id,
                                                                       change_of(change)))) {
      case ChangeAnswer::kChanged:
        return PAGEZIP_OK;
      case ChangeAnswer::kNotFound:
        return fail(PAGEZIP_NOT_FOUND, "there is no such document");
      case ChangeAnswer::kNoRoomToPin:
        return fail(PAGEZIP_OUT_OF_MEMORY, "the pool has no room for another pinned document");
    }
    return PAGEZIP_FAILED;
  });
}

pagezip_status pagezip_engine_drop_document(pagezip_engine* engine,
                                            const pagezip_requester* requester, const char* id) {
  return guarded([&] {
    require(engine != nullptr && id != nullptr, "engine or id is null");
    engine->running->engine.drop_document(requester_of(requester), id);
    return PAGEZIP_OK;
  });
}

pagezip_status pagezip_engine_list_documents(pagezip_engine* engine,
                                             const pagezip_requester* requester,
                                             pagezip_document_list** list) {
  return guarded([&] {
    require(engine != nullptr && list != nullptr, "engine or list is null");
    std::future<std::vector<DocumentInfo>> documents =
        engine->running->engine.documents(requester_of(requester));
    const int64_t block_bytes = engine->running->engine.pool().geometry().block_bytes();
    *list = new pagezip_document_list{answer_of(*engine, std::move(documents)), block_bytes};
    return PAGEZIP_OK;
  });
}

size_t pagezip_document_list_count(const pagezip_document_list* list) {
  return list == nullptr ? 0 : list->documents.size();
}

pagezip_status pagezip_document_list_get(const pagezip_document_list* list, size_t index,
                                         pagezip_listed_document* document) {
  return guarded([&] {
    write_struct(document, listed_document(listed(list, index)), "pagezip_listed_document");
    return PAGEZIP_OK;
  });
}

pagezip_status pagezip_document_list_get_version(const pagezip_document_list* list, size_t index,
                                                 size_t version_index,
                                                 pagezip_listed_version* version) {
  return guarded([&] {
    const auto& versions = listed(list, index).stored.versions;
    require(version_index < versions.size(), "the document has fewer versions");
    write_struct(version, listed_version(versions[version_index], list->block_bytes),
                 "pagezip_listed_version");
    return PAGEZIP_OK;
  });
}

void pagezip_document_list_free(pagezip_document_list* list) { delete list; }

pagezip_status pagezip_task_wait(pagezip_task* task, int64_t timeout_ms,
                                 pagezip_task_status* status) {
  return guarded([&] {
    require(task != nullptr, "task is null");
    task->task->wait(timeout_of(timeout_ms));
    write_struct(status, status_of(*task), "pagezip_task_status");
    return PAGEZIP_OK;
  });
}

void pagezip_task_cancel(pagezip_task* task) {
  if (task != nullptr) {
    cancel(*task, task->task->id());
  }
}

void pagezip_task_free(pagezip_task* task) { delete task; }
