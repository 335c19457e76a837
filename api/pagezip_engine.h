// The engine of pagezip as a C ABI: a model, any number of documents and requests at once. The
// third tier of pagezip.h, whose conventions hold here.
#pragma once

#include "pagezip.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Weights, tokenizer and chat template of a GGUF file. Any thread.
typedef struct pagezip_model pagezip_model;

typedef struct pagezip_model_options {
  size_t size;
  int32_t exact;       // not 0: float32 activations, not 8-bit ones. Slower
  const char* system;  // message before every document; NULL: none
} pagezip_model_options;

typedef struct pagezip_model_info {
  size_t size;
  int32_t vocab;
  int32_t context_max;  // positions that the model was made for
  int32_t layers;
  int32_t kv_heads;
  int32_t head_dim;
  uint64_t identity[4];  // as documents' files have it
} pagezip_model_info;

/// Reads and packs the weights, which takes seconds. `options` may be NULL.
PAGEZIP_API pagezip_status pagezip_model_open(const char* path,
                                              const pagezip_model_options* options,
                                              pagezip_model** model);
/// Engines keep what they need of it. NULL is allowed.
PAGEZIP_API void pagezip_model_close(pagezip_model* model);
PAGEZIP_API pagezip_status pagezip_model_get_info(const pagezip_model* model,
                                                  pagezip_model_info* info);
/// Writes the first `ids_max` token ids of a text, and how many there are. Nothing in the text
/// becomes a control token.
PAGEZIP_API pagezip_status pagezip_model_tokenize(const pagezip_model* model, const char* text,
                                                  size_t text_bytes, int32_t* ids, size_t ids_max,
                                                  size_t* count);

/// The serving engine. Thread rule: any thread, but pagezip_engine_step() from one at a time, and
/// pagezip_engine_destroy() once no other call on it is running.
typedef struct pagezip_engine pagezip_engine;

typedef struct pagezip_engine_options {
  size_t size;
  int64_t pool_bytes;   // of keys and values; committed as they are used
  int64_t context_max;  // positions of a request; 0: the model's own limit
  int32_t threads;      // that compute; 0: one for each core
  int32_t page_tokens;  // 16, 32 or 64; 0: 16
  int32_t driven;       // not 0: no thread of its own, you call pagezip_engine_step()
  const char* folder;   // an existing one, where documents survive; NULL: they don't
} pagezip_engine_options;

/// Measures the machine for about as long as a short prompt takes, and starts.
PAGEZIP_API pagezip_status pagezip_engine_create(pagezip_model* model,
                                                 const pagezip_engine_options* options,
                                                 pagezip_engine** engine);
/// Ends what is left: tasks fail, and streams end with PAGEZIP_FINISH_CANCELLED; they may be read
/// and freed later. NULL is allowed.
PAGEZIP_API void pagezip_engine_destroy(pagezip_engine* engine);
/// Only if driven. *worked is 0 if there was nothing to do.
PAGEZIP_API pagezip_status pagezip_engine_step(pagezip_engine* engine, int32_t* worked);

/// Who asks. Documents of others are not found, whatever is asked. NULL, where one can be given:
/// the tenant "" without groups.
typedef struct pagezip_requester {
  size_t size;
  const char* tenant;         // NULL: ""
  const char* const* groups;  // that it belongs to
  size_t group_count;
} pagezip_requester;

/// A document being made. Thread rule: one thread at a time; cancel from any.
typedef struct pagezip_task pagezip_task;

typedef struct pagezip_compress_request {
  size_t size;
  const pagezip_requester* requester;
  const char* group;  // of the requester's, whose members may use it; NULL: only its tenant
  const char* id;     // new; of letters, digits, '_' and '-'
  const char* name;   // for people; or NULL
  const char* text;   // UTF-8
  size_t text_bytes;
  const double* keep_ratios;  // a version for each; none: only every pair
  size_t keep_ratio_count;
  int32_t keep_full;  // not 0: keep the version with every pair, too
  int32_t pinned;     // not 0: stays in memory
  int64_t ttl_s;      // seconds of life after the last use; 0: for ever
  int32_t priority;   // higher is served earlier
  /// Id of a document that the text goes on from, or NULL: a version of it stands before the text,
  /// and stays in memory as long as this one, which has no file.
  const char* parent;
  double parent_keep_ratio;  // the version kept nearest to this; 0: the smallest
} pagezip_compress_request;

typedef enum pagezip_task_state {
  PAGEZIP_TASK_WORKING = 0,
  PAGEZIP_TASK_DONE = 1,
  PAGEZIP_TASK_FAILED = 2,
} pagezip_task_state;

typedef struct pagezip_task_status {
  size_t size;
  pagezip_task_state state;
  const char* stage;  // for people: "prefill"
  int64_t done;       // of the stage: tokens, or layers of a compaction
  int64_t total;
  int64_t full_bytes;  // of every pair
  int64_t bytes;       // of all compressed versions
  const char* error;   // "" unless failed. Valid until the next call on the task
} pagezip_task_status;

/// PAGEZIP_BUSY if too much waits.
PAGEZIP_API pagezip_status pagezip_engine_compress(pagezip_engine* engine,
                                                   const pagezip_compress_request* request,
                                                   pagezip_task** task);
/// Waits until the document is ready or has failed, at most so long, and says how far it is.
PAGEZIP_API pagezip_status pagezip_task_wait(pagezip_task* task, int64_t timeout_ms,
                                             pagezip_task_status* status);
PAGEZIP_API void pagezip_task_cancel(pagezip_task* task);
/// The document is made nevertheless. NULL is allowed.
PAGEZIP_API void pagezip_task_free(pagezip_task* task);

/// One more version of a document: cut from one that keeps more, without the model's work, if its
/// scores are there. What is wrong with the document is told by the task.
PAGEZIP_API pagezip_status pagezip_engine_add_version(pagezip_engine* engine,
                                                      const pagezip_requester* requester,
                                                      const char* id, double keep_ratio,
                                                      pagezip_task** task);

/// What is NULL stays as it is.
typedef struct pagezip_document_change {
  size_t size;
  const char* name;
  const int64_t* ttl_s;
  const int32_t* pinned;
} pagezip_document_change;

/// PAGEZIP_NOT_FOUND; PAGEZIP_OUT_OF_MEMORY if there is no room for another pin. If the engine is
/// driven, this and the list make steps, and count as pagezip_engine_step() for the thread rule.
PAGEZIP_API pagezip_status pagezip_engine_change_document(pagezip_engine* engine,
                                                          const pagezip_requester* requester,
                                                          const char* id,
                                                          const pagezip_document_change* change);
/// New requests don't find it any more; its memory goes with its last reader. No error if there is
/// none.
PAGEZIP_API pagezip_status pagezip_engine_drop_document(pagezip_engine* engine,
                                                        const pagezip_requester* requester,
                                                        const char* id);

/// The documents of a moment. Immutable; any thread.
typedef struct pagezip_document_list pagezip_document_list;

typedef struct pagezip_listed_document {
  size_t size;
  const char* id;
  const char* name;
  const char* group;   // NULL: its tenant's own
  int64_t created_s;   // since 1970
  int64_t last_use_s;  // likewise
  int64_t ttl_s;       // 0: for ever
  int32_t pinned;      // 0 or 1
  int32_t working;     // 1: a version of it is being made
  int32_t has_scores;  // 1: more versions need no work of the model
  int64_t tokens;      // with its prefix, without its parent
  size_t version_count;
} pagezip_listed_document;

typedef struct pagezip_listed_version {
  size_t size;
  double keep_ratio;
  int32_t full;      // 1: every pair, as prefill wrote it
  int32_t resident;  // 1: in memory
  int32_t stored;    // 1: in a file
  int64_t bytes;     // in memory
  int64_t file_bytes;
  int64_t readers;  // now
  int64_t uses;     // so far
} pagezip_listed_version;

/// All that the requester may use.
PAGEZIP_API pagezip_status pagezip_engine_list_documents(pagezip_engine* engine,
                                                         const pagezip_requester* requester,
                                                         pagezip_document_list** list);
PAGEZIP_API size_t pagezip_document_list_count(const pagezip_document_list* list);
/// Texts are valid as long as the list.
PAGEZIP_API pagezip_status pagezip_document_list_get(const pagezip_document_list* list,
                                                     size_t index,
                                                     pagezip_listed_document* document);
/// Versions are in the order of what they keep, the full one last.
PAGEZIP_API pagezip_status pagezip_document_list_get_version(const pagezip_document_list* list,
                                                             size_t index, size_t version_index,
                                                             pagezip_listed_version* version);
/// NULL is allowed.
PAGEZIP_API void pagezip_document_list_free(pagezip_document_list* list);

/// The output of one request. Thread rule: one thread at a time; cancel from any.
typedef struct pagezip_stream pagezip_stream;

typedef struct pagezip_generate_request {
  size_t size;
  const pagezip_requester* requester;  // cached prefixes are its tenant's own
  const char* document;                // id, or NULL
  double keep_ratio;                   // the version kept nearest to this; 0: the smallest
  const char* text;                    // UTF-8, put into the model's chat template
  size_t text_bytes;
  const int32_t* tokens;  // instead of text, if there are any: the prompt as it is
  size_t token_count;
  int64_t output_max;  // tokens
  uint32_t choices;    // 0: one. Choice k is sampled with seed + k
  double temperature;  // 0: greedy
  int32_t top_k;       // 0: all
  double top_p;        // 0: 1
  double min_p;
  double repetition_penalty;  // 0: 1
  uint64_t seed;
  const char* const* stops;
  size_t stop_count;
  int32_t ignore_end;  // not 0: go on after end tokens
  int32_t logprobs;    // not 0: with log-probabilities
  int32_t priority;    // higher is served earlier
} pagezip_generate_request;

typedef enum pagezip_event_kind {
  PAGEZIP_EVENT_NONE = 0,      // nothing came in time
  PAGEZIP_EVENT_TOKEN = 1,     // choice, token, text, logprob
  PAGEZIP_EVENT_FINISHED = 2,  // choice, finish, and the rest of its text
  PAGEZIP_EVENT_REFUSED = 3,   // text says why; the only event
  PAGEZIP_EVENT_CLOSED = 4,    // all was read
} pagezip_event_kind;

typedef enum pagezip_finish {
  PAGEZIP_FINISH_END = 0,  // an end token, which isn't part of the output
  PAGEZIP_FINISH_LENGTH = 1,
  PAGEZIP_FINISH_STOP = 2,  // a stop string, which isn't part of the text
  PAGEZIP_FINISH_CANCELLED = 3,
  PAGEZIP_FINISH_FAILED = 4,  // the model gave logits that are not numbers
} pagezip_finish;

typedef struct pagezip_event {
  size_t size;
  pagezip_event_kind kind;
  uint32_t choice;
  const char* text;   // valid UTF-8, 0 at its end; valid until the next call on the stream
  size_t text_bytes;  // often none, in the middle of a character or a stop string
  int32_t token;
  float logprob;
  pagezip_finish finish;
} pagezip_event;

typedef struct pagezip_usage {
  size_t size;
  int64_t prompt_tokens;    // of the request
  int64_t cached_tokens;    // of them, found in the prefix cache
  int64_t document_tokens;  // positions that the document takes
  double keep_ratio;        // of the version that served; 1 without a document
} pagezip_usage;

/// PAGEZIP_BUSY if too much waits. What else stands in the way comes as PAGEZIP_EVENT_REFUSED.
PAGEZIP_API pagezip_status pagezip_engine_submit(pagezip_engine* engine,
                                                 const pagezip_generate_request* request,
                                                 pagezip_stream** stream);
PAGEZIP_API pagezip_status pagezip_stream_next(pagezip_stream* stream, int64_t timeout_ms,
                                               pagezip_event* event);
/// Known from the first event on.
PAGEZIP_API pagezip_status pagezip_stream_get_usage(const pagezip_stream* stream,
                                                    pagezip_usage* usage);
PAGEZIP_API void pagezip_stream_cancel(pagezip_stream* stream);
/// Cancels what isn't finished. NULL is allowed.
PAGEZIP_API void pagezip_stream_free(pagezip_stream* stream);

/// Of the last step that ended. Counts are since the start.
typedef struct pagezip_stats {
  size_t size;
  int64_t steps;
  int64_t decode_rows;
  int64_t prompt_rows;
  int64_t document_rows;  // prefilled
  int64_t score_rows;
  int64_t cached_tokens;  // of prompts, spared by the prefix cache
  int64_t preemptions;
  int64_t running;  // requests and documents, now
  int64_t waiting;
} pagezip_stats;

PAGEZIP_API pagezip_status pagezip_engine_get_stats(pagezip_engine* engine, pagezip_stats* stats);

#ifdef __cplusplus
}  // extern "C"
#endif
