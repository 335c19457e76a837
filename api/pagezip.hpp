// pagezip.h for C++17: owners instead of handles, exceptions instead of statuses. Header-only.
//
//   auto args = pagezip::embed::sized<pagezip_attend_args>();
//   ...
//   pagezip::embed::attend(args, workspace);
//
// Thread rules are those of the handles in pagezip.h.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "pagezip_engine.h"

namespace pagezip::embed {

class Error : public std::runtime_error {
 public:
  Error(pagezip_status status, const std::string& what)
      : std::runtime_error(what), status_(status) {}
  pagezip_status status() const { return status_; }

 private:
  pagezip_status status_;
};

inline void check(pagezip_status status) {
  if (status != PAGEZIP_OK) {
    throw Error(status, pagezip_last_error());
  }
}

/// A struct of the C ABI with its size, and 0 in all other fields.
template <typename T>
T sized() {
  T made{};
  made.size = sizeof made;
  return made;
}

/// Memory for kernels; grows and never shrinks. One for each thread.
class Workspace {
 public:
  void* bytes(size_t count) {
    if (count > size_) {
      memory_.reset(::operator new (count, std::align_val_t{64}));
      size_ = count;
    }
    return memory_.get();
  }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* memory) const { ::operator delete (memory, std::align_val_t{64}); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t size_ = 0;
};

inline void attend(const pagezip_attend_args& args, Workspace& workspace) {
  void* memory = workspace.bytes(pagezip_attend_workspace_bytes(&args));
  check(pagezip_attend(&args, memory, workspace.size()));
}
inline void score(const pagezip_score_args& args, Workspace& workspace) {
  void* memory = workspace.bytes(pagezip_score_workspace_bytes(&args));
  check(pagezip_score(&args, memory, workspace.size()));
}
inline void select(const pagezip_select_args& args, Workspace& workspace) {
  void* memory = workspace.bytes(pagezip_select_workspace_bytes(&args));
  check(pagezip_select(&args, memory, workspace.size()));
}
inline void compact(const pagezip_compact_args& args) { check(pagezip_compact(&args)); }
inline void merge(const pagezip_merge_args& args) { check(pagezip_merge(&args)); }

/// Owns a handle. Move-only.
template <typename T, void (*free)(T*)>
class Handle {
 public:
  T* get() const { return handle_.get(); }

 protected:
  explicit Handle(T* handle) : handle_(handle) {}

 private:
  struct Free {
    void operator()(T* handle) const { free(handle); }
  };
  std::unique_ptr<T, Free> handle_;
};

class Pool : public Handle<pagezip_pool, pagezip_pool_destroy> {
 public:
  explicit Pool(const pagezip_pool_options& options) : Handle(create(options)) {}

 private:
  static pagezip_pool* create(const pagezip_pool_options& options) {
    pagezip_pool* pool = nullptr;
    check(pagezip_pool_create(&options, &pool));
    return pool;
  }
};

class Document : public Handle<pagezip_document, pagezip_document_drop> {
 public:
  Document(Pool& pool, const pagezip_document_spec& spec) : Handle(create(pool, spec)) {}
  static Document load(Pool& pool, const std::string& path, const uint64_t (&model)[4]) {
    pagezip_document* document = nullptr;
    check(pagezip_document_load(pool.get(), path.c_str(), model, &document));
    return Document(document);
  }
  void save(const std::string& path) const { check(pagezip_document_save(get(), path.c_str())); }
  pagezip_document_info info() const {
    auto info = sized<pagezip_document_info>();
    check(pagezip_document_get_info(get(), &info));
    return info;
  }
  pagezip_segment segment() const {
    auto segment = sized<pagezip_segment>();
    check(pagezip_document_get_segment(get(), &segment));
    return segment;
  }

 private:
  explicit Document(pagezip_document* document) : Handle(document) {}
  static pagezip_document* create(Pool& pool, const pagezip_document_spec& spec) {
    pagezip_document* document = nullptr;
    check(pagezip_document_create(pool.get(), &spec, &document));
    return document;
  }
};

class Model : public Handle<pagezip_model, pagezip_model_close> {
 public:
  explicit Model(const std::string& path, const pagezip_model_options* options = nullptr)
      : Handle(open(path, options)) {}
  pagezip_model_info info() const {
    auto info = sized<pagezip_model_info>();
    check(pagezip_model_get_info(get(), &info));
    return info;
  }
  std::vector<int32_t> tokenize(std::string_view text) const {
    // No text has more tokens than bytes.
    std::vector<int32_t> ids(text.size());
    size_t count = 0;
    check(pagezip_model_tokenize(get(), text.data(), text.size(), ids.data(), ids.size(), &count));
    ids.resize(count);
    return ids;
  }

 private:
  static pagezip_model* open(const std::string& path, const pagezip_model_options* options) {
    pagezip_model* model = nullptr;
    check(pagezip_model_open(path.c_str(), options, &model));
    return model;
  }
};

/// A document being made.
class Task : public Handle<pagezip_task, pagezip_task_free> {
 public:
  pagezip_task_status wait(int64_t timeout_ms) {
    auto status = sized<pagezip_task_status>();
    check(pagezip_task_wait(get(), timeout_ms, &status));
    return status;
  }
  void cancel() { pagezip_task_cancel(get()); }

 private:
  friend class Engine;
  explicit Task(pagezip_task* task) : Handle(task) {}
};

/// The output of a request. Cancels the request if it is destroyed before its end.
class Stream : public Handle<pagezip_stream, pagezip_stream_free> {
 public:
  pagezip_event next(int64_t timeout_ms) {
    auto event = sized<pagezip_event>();
    check(pagezip_stream_next(get(), timeout_ms, &event));
    return event;
  }
  pagezip_usage usage() const {
    auto usage = sized<pagezip_usage>();
    check(pagezip_stream_get_usage(get(), &usage));
    return usage;
  }
  void cancel() { pagezip_stream_cancel(get()); }

 private:
  friend class Engine;
  explicit Stream(pagezip_stream* stream) : Handle(stream) {}
};

/// The documents of a moment.
class DocumentList : public Handle<pagezip_document_list, pagezip_document_list_free> {
 public:
  size_t size() const { return pagezip_document_list_count(get()); }
  /// Texts are valid as long as the list.
  pagezip_listed_document document(size_t index) const {
    auto document = sized<pagezip_listed_document>();
    check(pagezip_document_list_get(get(), index, &document));
    return document;
  }
  pagezip_listed_version version(size_t index, size_t version_index) const {
    auto version = sized<pagezip_listed_version>();
    check(pagezip_document_list_get_version(get(), index, version_index, &version));
    return version;
  }

 private:
  friend class Engine;
  explicit DocumentList(pagezip_document_list* list) : Handle(list) {}
};

class Engine : public Handle<pagezip_engine, pagezip_engine_destroy> {
 public:
  Engine(const Model& model, const pagezip_engine_options& options)
      : Handle(create(model, options)) {}
  Task compress(const pagezip_compress_request& request) {
    pagezip_task* task = nullptr;
    check(pagezip_engine_compress(get(), &request, &task));
    return Task(task);
  }
  Stream submit(const pagezip_generate_request& request) {
    pagezip_stream* stream = nullptr;
    check(pagezip_engine_submit(get(), &request, &stream));
    return Stream(stream);
  }
  // `requester` may be null: the tenant "".
  Task add_version(const pagezip_requester* requester, const std::string& id, double keep_ratio) {
    pagezip_task* task = nullptr;
    check(pagezip_engine_add_version(get(), requester, id.c_str(), keep_ratio, &task));
    return Task(task);
  }
  void change_document(const pagezip_requester* requester, const std::string& id,
                       const pagezip_document_change& change) {
    check(pagezip_engine_change_document(get(), requester, id.c_str(), &change));
  }
  void drop_document(const pagezip_requester* requester, const std::string& id) {
    check(pagezip_engine_drop_document(get(), requester, id.c_str()));
  }
  DocumentList documents(const pagezip_requester* requester) {
    pagezip_document_list* list = nullptr;
    check(pagezip_engine_list_documents(get(), requester, &list));
    return DocumentList(list);
  }
  /// Only if driven. False if there was nothing to do.
  bool step() {
    int32_t worked = 0;
    check(pagezip_engine_step(get(), &worked));
    return worked != 0;
  }
  pagezip_stats stats() {
    auto stats = sized<pagezip_stats>();
    check(pagezip_engine_get_stats(get(), &stats));
    return stats;
  }

 private:
  static pagezip_engine* create(const Model& model, const pagezip_engine_options& options) {
    pagezip_engine* engine = nullptr;
    check(pagezip_engine_create(model.get(), &options, &engine));
    return engine;
  }
};

}  // namespace pagezip::embed
