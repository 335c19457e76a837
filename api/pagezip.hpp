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

#include "pagezip.h"

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

}  // namespace pagezip::embed
