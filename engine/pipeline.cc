#include "engine/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/compaction.h"

namespace pagezip {
namespace {

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

void report(const PipelineProgress& progress, Stage stage, int64_t done, int64_t total) {
  if (!progress(stage, done, total)) {
    throw Cancelled();
  }
}

}  // namespace

Pipeline::Pipeline(const Model& model, const Kernels& kernels, ActivationType activations,
                   ThreadPool& threads, const PipelineOptions& options, int64_t pool_blocks)
    : model_(model),
      options_(options),
      context_max_(options.context_max.value_or(model.config().context_max)),
      transformer_(model, kernels, activations,
                   model.kv_geometry(options.kv_type, options.page_tokens).page,
                   std::max(options.prefill_rows, ScoreJob::kTileRows), threads),
      pool_(model.kv_geometry(options.kv_type, options.page_tokens), pool_blocks, *kernels.memory),
      logits_(*kernels.memory) {
  logits_.resize(model.config().vocab);
}

int64_t Pipeline::blocks_for_question(const Model& model, const PipelineOptions& options,
                                      int64_t tokens) {
  const KvGeometry geometry = model.kv_geometry(options.kv_type, options.page_tokens);
  return geometry.pages_for(tokens) * static_cast<int64_t>(model.kv_groups().size());
}

int64_t Pipeline::blocks_for_document(const Model& model, const PipelineOptions& options,
                                      int64_t tokens, double keep_ratio) {
  const KvGeometry geometry = model.kv_geometry(options.kv_type, options.page_tokens);
  int64_t blocks = 0;
  for (const KvGroup& group : model.kv_groups()) {
    // A sliding group holds its window and the rows of one step.
    const int64_t held =
        group.window == 0 ? tokens : std::min(tokens, group.window + options.prefill_rows);
    blocks += geometry.pages_for(held) + (group.window == 0 ? 0 : 1);
  }
  // The compressed pages: every list may end with a partial page.
  const auto kept = static_cast<int64_t>(static_cast<double>(tokens) * keep_ratio);
  return blocks + geometry.pages_for(kept) + 2;
}

void Pipeline::check_fits(int64_t prefix_tokens, int64_t context_tokens,
                          const RepeatPrompts* prompts) const {
  if (context_tokens == 0) {
    throw Error(ErrorKind::kUsage, "the document is empty");
  }
  const int64_t document = prefix_tokens + context_tokens;
  const int64_t repeat =
      prompts == nullptr ? 0 : prompts->rows_max(context_tokens, options_.chunk_tokens);
  if (document + repeat > context_max_) {
    throw Error(ErrorKind::kUsage,
                fmt::format("the document is too long: {} tokens and a repeat prompt of {} exceed "
                            "the limit of {} positions",
                            document, repeat, context_max_));
  }
}

BlockReservation Pipeline::reserve(int64_t blocks, const char* what) {
  auto reservation = pool_.reserve(blocks);
  if (!reservation) {
    const int64_t bytes = pool_.geometry().block_bytes();
    throw Error(ErrorKind::kOutOfMemory,
                fmt::format("the KV pool is too small: {} needs {:.1f} MiB, {:.1f} of {:.1f} MiB "
                            "are free",
                            what, static_cast<double>(blocks * bytes) / 1048576.0,
                            static_cast<double>(pool_.blocks_available() * bytes) / 1048576.0,
                            static_cast<double>(pool_.bytes()) / 1048576.0));
  }
  return std::move(*reservation);
}

void Pipeline::run(Sequence& sequence, const Document* document, std::span<const TokenId> tokens,
                   BlockReservation& blocks, const std::function<void(int64_t done)>& progress) {
  const auto total = static_cast<int64_t>(tokens.size());
  std::vector<KvView> views(static_cast<size_t>(sequence.groups()));
  for (int64_t done = 0; done < total;) {
    const int64_t count = std::min(options_.prefill_rows, total - done);
    const int64_t row = sequence.length();
    // What falls out of a window is free for the step that comes.
    sequence.drop_behind(row);
    const int64_t missing = sequence.blocks_needed(row + count);
    if (blocks.blocks() < missing) {
      blocks.merge(reserve(missing - blocks.blocks(), "the next step"));
    }
    sequence.grow(row + count, blocks);
    for (int g = 0; g < sequence.groups(); ++g) {
      KvView view = document == nullptr ? KvView{} : document->view(g);
      view.push(sequence.segment(g));
      views[static_cast<size_t>(g)] = view;
    }
    const RowSpan span{tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(count)),
                       sequence.first_position() + row, views};
    done += count;
    transformer_.forward({&span, 1},
                         {done == total ? logits_.device() : nullptr, 1, logits_.size()});
    if (progress) {
      progress(done);
    }
  }
  logits_.to_host(0, logits_.size());
}

std::shared_ptr<const Document> Pipeline::prefill(std::span<const TokenId> prefix,
                                                  std::span<const TokenId> context,
                                                  const PipelineProgress& progress) {
  const auto prefix_length = static_cast<int64_t>(prefix.size());
  const int64_t total = prefix_length + static_cast<int64_t>(context.size());
  std::vector<TokenId> tokens(prefix.begin(), prefix.end());
  tokens.insert(tokens.end(), context.begin(), context.end());
  Sequence sequence(pool_, model_.kv_groups(), 0);
  const KvGeometry& geometry = pool_.geometry();
  BlockReservation blocks = reserve(geometry.pages_for(total), "the document");
  run(sequence, nullptr, tokens, blocks,
      [&](int64_t done) { report(progress, Stage::kPrefill, done, total); });
  sequence.drop_behind(sequence.length());
  return Document::full(sequence, prefix_length);
}

ScoreSet Pipeline::score(const std::shared_ptr<const Document>& full,
                         std::span<const TokenId> context, const RepeatPrompts& prompts,
                         const PipelineProgress& progress) {
  if (full->global_layers() == 0) {
    throw Error(ErrorKind::kUsage,
                "the model has only sliding-window layers: there is nothing to compress");
  }
  const auto tokens = static_cast<int64_t>(context.size());
  ScoreSlot slot(transformer_, options_.score_function,
                 prompts.rows_max(tokens, options_.chunk_tokens));
  ScoreJob job(transformer_, slot, full, context, prompts, options_.chunk_tokens);
  while (job.step()) {
    report(progress, Stage::kScore, job.tokens_done(), tokens);
  }
  score_bytes_ = slot.bytes();
  return job.take();
}

KeptSets Pipeline::select(const ScoreSet& scores, const SelectionOptions& options) {
  validate_keep_ratio(scores.tokens, options.keep_ratio);
  Selection selection = pagezip::select(
      scores, {options.keep_ratio, options.selector == Selector::kUniform, options.min_per_head});
  if (const auto* bad = std::get_if<BadScore>(&selection)) {
    throw Error(ErrorKind::kRuntime, "scoring failed: " + bad->message());
  }
  return std::get<KeptSets>(std::move(selection));
}

std::shared_ptr<const Document> Pipeline::compact(const std::shared_ptr<const Document>& full,
                                                  KeptSets kept, const PipelineProgress& progress) {
  const int layers = kept.layers;
  DocumentBuilder builder(full, std::move(kept));
  BlockReservation blocks = reserve(builder.blocks_needed(), "the compressed document");
  builder.take_blocks(blocks);
  for (int layer = 0; layer < layers; ++layer) {
    copy_layer(builder, transformer_.kernels(), transformer_.pool(), layer);
    report(progress, Stage::kCompact, layer + 1, layers);
  }
  return builder.finish();
}

Question::Question(Pipeline& pipeline, std::shared_ptr<const Document> document, int64_t tokens_max)
    : pipeline_(pipeline),
      document_(std::move(document)),
      blocks_(pipeline.reserve(
          Pipeline::blocks_for_question(pipeline.model(), pipeline.options_, tokens_max),
          "the question")),
      sequence_(pipeline.pool_, pipeline.model().kv_groups(), document_->logical_length()),
      tokens_max_(tokens_max) {
  if (document_->logical_length() + tokens_max > pipeline.context_max()) {
    throw Error(
        ErrorKind::kUsage,
        fmt::format("the question is too long: {} tokens behind a document of {} exceed the "
                    "limit of {} positions",
                    tokens_max, document_->logical_length(), pipeline.context_max()));
  }
}

std::span<const float> Question::append(std::span<const TokenId> tokens,
                                        const std::function<void(int64_t done)>& progress) {
  CHECK_LE(sequence_.length() + static_cast<int64_t>(tokens.size()), tokens_max_);
  pipeline_.run(sequence_, document_.get(), tokens, blocks_, progress);
  return pipeline_.prefill_logits();
}

Answer answer(Pipeline& pipeline, const Tokenizer& tokenizer,
              const std::shared_ptr<const Document>& document, std::span<const TokenId> question,
              const AnswerOptions& options,
              const std::function<bool(std::string_view text)>& on_text) {
  validate(options.sampling);
  const auto start = std::chrono::steady_clock::now();
  const auto question_tokens = static_cast<int64_t>(question.size());
  const int64_t room = pipeline.context_max() - document->logical_length() - question_tokens;
  const int64_t tokens_max = std::clamp<int64_t>(room, 1, options.tokens_max);
  Question run(pipeline, document, question_tokens + tokens_max);
  Sampler sampler(options.sampling, question);
  StreamDecoder decoder(tokenizer);
  StopMatcher stops(options.stops);
  Answer result;
  const auto emit = [&](const std::string& text) {
    result.text += text;
    if (!on_text(text)) {
      throw Cancelled();
    }
  };
  std::span<const float> logits = run.append(question, [&](int64_t) { emit(""); });
  while (true) {
    const TokenId token = sampler.sample(logits);
    if (result.first_token_ms == 0) {
      result.first_token_ms = ms_since(start);
    }
    if (tokenizer.is_end_of_generation(token)) {
      result.finish = FinishReason::kEnd;
      break;
    }
    result.tokens.push_back(token);
    emit(stops.feed(decoder.feed(token)));
    if (stops.matched()) {
      result.finish = FinishReason::kStopString;
      break;
    }
    if (static_cast<int64_t>(result.tokens.size()) == tokens_max) {
      break;
    }
    logits = run.append({&token, 1});
  }
  emit(stops.feed(decoder.flush()));
  emit(stops.flush());
  result.decode_ms = ms_since(start) - result.first_token_ms;
  return result;
}

}  // namespace pagezip
