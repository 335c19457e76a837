#include "api/http/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace pagezip::http {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class Families {
 public:
  void add(MetricType type, const std::string& name, const std::string& help, double value,
           Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family(type, name, help).metric.push_back(std::move(metric));
  }
  void gauge(const std::string& name, const std::string& help, int64_t value, Labels labels = {}) {
    add(MetricType::Gauge, name, help, static_cast<double>(value), std::move(labels));
  }
  void counter(const std::string& name, const std::string& help, int64_t value,
               Labels labels = {}) {
    add(MetricType::Counter, name, help, static_cast<double>(value), std::move(labels));
  }
  /// Values are multiplied by `unit`; buckets are powers of two.
  void histogram(const std::string& name, const std::string& help, const Histogram& from,
                 double unit, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    metric.histogram.sample_count = static_cast<uint64_t>(from.count());
    metric.histogram.sample_sum = static_cast<double>(from.sum()) * unit;
    uint64_t below = 0;
    for (size_t bucket = 0; bucket < Histogram::kBuckets; ++bucket) {
      below += static_cast<uint64_t>(from.in_bucket(bucket));
      const bool power_ends = (bucket + 1) % (size_t{2} * Histogram::kParts) == 0;
      if (power_ends && bucket + 1 < Histogram::kBuckets) {
        metric.histogram.bucket.push_back(
            {below, static_cast<double>(Histogram::begin(bucket + 1)) * unit});
      }
    }
    family(MetricType::Histogram, name, help).metric.push_back(std::move(metric));
  }
  const std::vector<MetricFamily>& all() const { return families_; }

 private:
  MetricFamily& family(MetricType type, const std::string& name, const std::string& help) {
    if (families_.empty() || families_.back().name != name) {
      families_.push_back({name, help, type, {}});
    }
    return families_.back();
  }

  std::vector<MetricFamily> families_;
};

constexpr double kMicro = 1e-6;

// Share of the pool that is in use and can't be evicted. Blocks may count as idle and as a
// document's, so it is cut at 0.
double utilization(const EngineStats& s) {
  const int64_t evictable = s.blocks_idle + s.documents.evictable_blocks;
  return s.blocks_total == 0
             ? 0
             : std::max(0.0, static_cast<double>(s.blocks_total - s.blocks_free - evictable) /
                                 static_cast<double>(s.blocks_total));
}

void add_pool(Families& f, const EngineStats& s, const Service& service) {
  const char* pages = "Blocks of the KV pool by what is in them";
  const int64_t held = s.documents.held_blocks;
  f.gauge("pagezip_blocks", pages, s.blocks_total - s.blocks_free, {{"state", "used"}});
  f.gauge("pagezip_blocks", pages, s.blocks_free, {{"state", "free"}});
  f.gauge("pagezip_blocks", pages, s.blocks_reserved, {{"state", "reserved"}});
  f.gauge("pagezip_blocks", pages, s.blocks_idle, {{"state", "idle_prefix"}});
  f.gauge("pagezip_blocks", pages, s.documents.resident_blocks, {{"state", "document"}});
  f.gauge("pagezip_blocks", pages, held, {{"state", "document_held"}});
  f.gauge("pagezip_blocks", pages, s.documents.pinned_blocks, {{"state", "document_pinned"}});
  f.gauge("pagezip_blocks", pages, s.documents.evictable_blocks, {{"state", "document_evictable"}});
  f.gauge("pagezip_pool_blocks", "Blocks that the KV pool has", s.blocks_total);
  f.add(MetricType::Gauge, "pagezip_block_bytes", "Bytes of a block",
        static_cast<double>(service.geometry().block_bytes()));
  f.add(MetricType::Gauge, "pagezip_kv_utilization_ratio",
        "Share of the KV pool that is in use and can't be evicted", utilization(s));
  f.gauge("pagezip_cache_config", "Block size and number of blocks, as labels", 1,
          {{"block_tokens", std::to_string(service.options().engine.page_tokens)},
           {"blocks", std::to_string(s.blocks_total)}});
}

void add_work(Families& f, const Stats& w) {
  f.gauge("pagezip_requests_running", "Choices of requests in the pool", w.running);
  f.gauge("pagezip_requests_waiting", "Choices of requests that wait", w.waiting);
  f.gauge("pagezip_document_jobs_running", "Documents being made", w.jobs_running);
  f.gauge("pagezip_document_jobs_waiting", "Documents that wait to be made", w.jobs_waiting);
  f.counter("pagezip_steps_total", "Steps of the engine", w.steps);
  f.counter("pagezip_steps_failed_total", "Steps that failed", w.steps_failed);
  const char* rows = "Rows that the model computed";
  f.counter("pagezip_rows_total", rows, w.rows_decode, {{"kind", "decode"}});
  f.counter("pagezip_rows_total", rows, w.rows_prompt, {{"kind", "prompt"}});
  f.counter("pagezip_rows_total", rows, w.rows_document, {{"kind", "document"}});
  f.counter("pagezip_rows_total", rows, w.rows_score, {{"kind", "score"}});
  f.counter("pagezip_prompt_tokens_total", "Tokens of admitted prompts", w.tokens_admitted);
  f.counter("pagezip_prompt_tokens_cached_total", "Of them, found in the prefix cache",
            w.tokens_cached);
  f.counter("pagezip_requests_finished_total", "Requests that ended by themselves",
            w.requests_finished);
  f.counter("pagezip_requests_cancelled_total", "Requests that were cancelled",
            w.requests_cancelled);
  f.counter("pagezip_preemptions_total", "Choices that had to leave the pool", w.preemptions);
  f.counter("pagezip_preempted_tokens_total", "Tokens computed and thrown away by that",
            w.tokens_lost);
  f.counter("pagezip_document_jobs_sent_back_total", "Document jobs that had to start again",
            w.jobs_sent_back);
  f.counter("pagezip_document_jobs_total", "Document jobs done", w.jobs_done);
  f.counter("pagezip_prefix_joins_total", "Requests that waited for another's identical prefix",
            w.joins);
  const char* seconds = "Time of the engine's steps by kind of work";
  f.add(MetricType::Counter, "pagezip_work_seconds_total", seconds, w.rows_us * kMicro,
        {{"kind", "rows"}});
  f.add(MetricType::Counter, "pagezip_work_seconds_total", seconds, w.tiles_us * kMicro,
        {{"kind", "score"}});
  f.add(MetricType::Counter, "pagezip_work_seconds_total", seconds, w.compacts_us * kMicro,
        {{"kind", "compact"}});
}

void add_documents(Families& f, const DocumentStore::Stats& d) {
  f.gauge("pagezip_documents", "Documents that the store has", d.documents);
  f.gauge("pagezip_document_versions", "Versions of them", d.versions);
  f.gauge("pagezip_document_file_bytes", "Bytes of document files", d.file_bytes);
  f.counter("pagezip_document_versions_published_total", "Versions that were made", d.published);
  f.counter("pagezip_document_leases_total", "Times that a request used a document", d.leases);
  f.counter("pagezip_document_evicted_total", "Versions that left the memory", d.evicted);
  f.counter("pagezip_document_restored_total", "Versions read back from files", d.restored);
  f.counter("pagezip_document_dropped_total", "Versions gone for want of room", d.dropped);
  f.counter("pagezip_document_dropped_unused_total", "Of them, never used", d.dropped_unused);
  f.counter("pagezip_document_expired_total", "Documents whose time was over", d.expired);
}

void add_times(Families& f, const Histograms& h) {
  static constexpr std::pair<StepKind, const char*> kKinds[] = {{StepKind::kDecode, "decode"},
                                                                {StepKind::kPrompt, "prompt"},
                                                                {StepKind::kScore, "score"},
                                                                {StepKind::kCompact, "compact"}};
  for (const auto& [kind, name] : kKinds) {
    f.histogram("pagezip_step_seconds", "Time of a step by the last kind of work in it",
                h.step(kind), kMicro, {{"kind", name}});
  }
  f.histogram("pagezip_step_rows", "Rows of a step's batch", h.step_rows, 1);
  f.histogram("pagezip_decode_stall_seconds", "What documents add to a step that decodes",
              h.delay_us, kMicro);
  f.histogram("pagezip_queue_seconds", "From submission to the first admission", h.queue_us,
              kMicro);
  f.histogram("pagezip_time_to_first_token_seconds", "From submission to the first token",
              h.first_token_us, kMicro);
}

void add_vllm(Families& f, const EngineStats& s, const Service& service) {
  const Labels model = {{"model_name", service.model_name()}};
  f.gauge("vllm:num_requests_running", "Requests in the pool", s.work.running, model);
  f.gauge("vllm:num_requests_waiting", "Requests that wait", s.work.waiting, model);
  f.add(MetricType::Gauge, "vllm:kv_cache_usage_perc", "Share of the KV pool in use, 0 to 1",
        utilization(s), model);
  Labels config = model;
  config.push_back({"block_size", std::to_string(service.options().engine.page_tokens)});
  config.push_back({"num_gpu_blocks", std::to_string(s.blocks_total)});
  f.gauge("vllm:cache_config_info", "Block size and number of blocks, as labels", 1, config);
  f.counter("vllm:prefix_cache_queries_total", "Tokens of prompts", s.work.tokens_admitted, model);
  f.counter("vllm:prefix_cache_hits_total", "Of them, found in the cache", s.work.tokens_cached,
            model);
  f.histogram("vllm:time_to_first_token_seconds", "From submission to the first token",
              s.histograms.first_token_us, kMicro, model);
}

}  // namespace

std::string metrics_text(const EngineStats& stats, const RequestCounts& counts,
                         const Service& service, bool vllm) {
  Families families;
  families.gauge("pagezip_build_info", "The build, as labels", 1,
                 {{"version", PAGEZIP_VERSION}, {"model", service.model_name()}});
  add_pool(families, stats, service);
  add_work(families, stats.work);
  add_documents(families, stats.documents);
  add_times(families, stats.histograms);
  for (const auto& [status, count] : counts.by_status) {
    families.counter("pagezip_http_requests_total", "Answers by status", count,
                     {{"status", std::to_string(status)}});
  }
  families.counter("pagezip_http_aborted_total", "Clients that left before their answer",
                   counts.aborted);
  if (vllm) {
    add_vllm(families, stats, service);
  }
  return prometheus::TextSerializer().Serialize(families.all());
}

}  // namespace pagezip::http
