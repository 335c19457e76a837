#include "api/cli/options.h"

#include <fmt/format.h>

#include <functional>
#include <thread>
#include <utility>

#include "api/cli/files.h"
#include "api/cli/option_kinds.h"
#include "api/cli/serve_options.h"
#include "base/error.h"
#include "engine/loaded_model.h"
#include "engine/utf8.h"
#include "kernels/kernels.h"

namespace pagezip {
namespace {

constexpr int64_t kContextMax = int64_t{1} << 30;

void add_model(CLI::App& app, RuntimeOptions& o) {
  add_text(app, "--model,-m", o.model, "FILE", "The model, a GGUF file")->required();
}

void add_system(CLI::App& app, RuntimeOptions& o) {
  const auto set = [&o](const std::string& text) { o.system = text; };
  app.add_option_function<std::string>(
         "--system", set, fmt::format("System message, \"\": none; default \"{}\"", kDefaultSystem))
      ->option_text("TEXT");
}

void add_kv(CLI::App& app, RuntimeOptions& o) {
  add_choice<KvType>(app, "--kv-dtype", o.kv_type,
                     {{"f16", KvType::kF16}, {"bf16", KvType::kBF16}, {"f32", KvType::kF32}},
                     "Type of the KV cache")
      ->group("Runtime");
  add_choice<int>(app, "--page-tokens", o.page_tokens, {{"16", 16}, {"32", 32}, {"64", 64}},
                  "Tokens of a KV page")
      ->group("Runtime");
}

void add_runtime(CLI::App& app, RuntimeOptions& o) {
  o.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  add_model(app, o);
  add_text(app, "--chat-template", o.chat_template, "FILE",
           "A Jinja chat template, default the model's own");
  add_number<int64_t>(app, "--pool-mib", o.pool_mib, {1, 1 << 20, false, "MiB"},
                      "Size of the KV pool", "what the job needs")
      ->group("Runtime");
  add_number<int64_t>(app, "--context", o.context, {1, kContextMax, false, "tokens"},
                      "Longest context", "the model's limit")
      ->group("Runtime");
  add_number<int>(app, "--threads", o.threads, {1, 1024}, "Threads of the CPU kernels")
      ->group("Runtime");
  add_choice<Backend>(
      app, "--backend", o.backend,
      {{"cpu", Backend::kCpu}, {"cuda", Backend::kCuda}, {"reference", Backend::kReference}},
      "Kernels; reference is slow and exact")
      ->group("Runtime");
  add_choice<ActivationType>(app, "--activations", o.activations,
                             {{"q8", ActivationType::kQ8}, {"f32", ActivationType::kF32}},
                             "What meets quantised weights")
      ->group("Runtime");
}

void add_chunk(CLI::App& app, CompressionOptions& o) {
  add_number<int64_t>(app, "--chunk", o.chunk_tokens, {16, 1 << 20, false, "tokens"},
                      "Part of the document that is scored at once")
      ->group("Compression");
  add_choice<ScoreFunction>(
      app, "--scorer", o.score_function,
      {{"kvzip", ScoreFunction::kProbability}, {"kvzip-logit", ScoreFunction::kLogit}},
      "How pairs are scored")
      ->group("Compression");
}

void add_compression(CLI::App& app, CompressionOptions& o) {
  add_number<double>(app, "--keep", o.selection.keep_ratio, {0, 1, true},
                     "Share of the document's KV pairs to keep")
      ->group("Compression");
  add_choice<Selector>(app, "--selector", o.selection.selector,
                       {{"global", Selector::kGlobal}, {"uniform", Selector::kUniform}},
                       "One budget for all heads, or the same for each")
      ->group("Compression");
  add_number<int64_t>(app, "--min-per-head", o.selection.min_per_head,
                      {0, kContextMax, false, "pairs"}, "Floor of each head's budget")
      ->group("Compression");
  add_chunk(app, o);
}

void add_answer(CLI::App& app, Options& o) {
  SamplingParams& s = o.answer.sampling;
  app.add_option("--question,-q", o.questions, "A question; repeat for more, all on one document")
      ->option_text("TEXT")
      ->allow_extra_args(false)
      ->required();
  const auto number = [&app](const char* name, auto& value, const auto& range, const char* text) {
    add_number(app, name, value, range, text)->group("Answers");
  };
  number("--max-tokens", o.answer.tokens_max, Range<int64_t>{1, kContextMax, false, "tokens"},
         "Longest answer");
  number("--temperature", s.temperature, Range<double>{0, 100}, "0: always the likeliest token");
  number("--top-k", s.top_k, Range<int>{0, 1 << 30}, "Draw from the K likeliest tokens, 0: all");
  number("--top-p", s.top_p, Range<double>{0, 1, true}, "Draw from this share of probability");
  number("--min-p", s.min_p, Range<double>{0, 1}, "Least probability, relative to the best");
  number("--repetition-penalty", s.repetition_penalty, Range<double>{0.01, 100},
         "Divides the logits of tokens seen");
  number("--seed", s.seed, Range<uint64_t>{0, UINT64_MAX}, "Of the draw");
  app.add_option("--stop", o.answer.stops, "Ends the answer before this text; repeat for more")
      ->option_text("TEXT")
      ->allow_extra_args(false)
      ->group("Answers");
}

CLI::App* add_verb(CLI::App& app, Options& o, Verb verb, const char* name,
                   const char* description) {
  CLI::App* sub = app.add_subcommand(name, description);
  sub->callback([&o, verb] { o.verb = verb; });
  return sub;
}

void add_json(CLI::App& app, Options& o) {
  app.add_flag("--json", o.json, "Print one JSON object");
}

void add_document(CLI::App& app, Options& o) {
  add_text(app, "--document,-d", o.document, "FILE", "UTF-8 text, \"-\" for standard input")
      ->required();
}

void add_answering_verbs(CLI::App& app, Options& o) {
  CLI::App* ask = add_verb(app, o, Verb::kAsk, "ask", "Compress a document and ask about it");
  add_document(*ask, o);
  ask->add_flag("--compare", o.compare, "Answer with the full document, too");
  add_json(*ask, o);
  add_system(*ask, o.runtime);
  add_runtime(*ask, o.runtime);
  add_kv(*ask, o.runtime);
  add_compression(*ask, o.compression);
  add_number<int64_t>(*ask, "--min-context", o.compression.min_context,
                      {0, kContextMax, false, "tokens"}, "Shorter documents are not compressed")
      ->group("Compression");
  add_answer(*ask, o);

  CLI::App* query = add_verb(app, o, Verb::kQuery, "query", "Ask about a compressed document");
  add_text(*query, "--document,-d", o.document, "FILE", "What compress wrote")->required();
  add_json(*query, o);
  add_runtime(*query, o.runtime);
  add_answer(*query, o);
}

void add_file_verbs(CLI::App& app, Options& o) {
  CLI::App* compress = add_verb(app, o, Verb::kCompress, "compress", "Write a compressed document");
  add_document(*compress, o);
  add_text(*compress, "--output,-o", o.output, "FILE", "The compressed document")->required();
  add_json(*compress, o);
  add_system(*compress, o.runtime);
  add_runtime(*compress, o.runtime);
  add_kv(*compress, o.runtime);
  add_compression(*compress, o.compression);

  CLI::App* inspect = add_verb(app, o, Verb::kInspect, "inspect", "Show a compressed document");
  add_text(*inspect, "file", o.document, "FILE", "What compress wrote")->required();
  add_json(*inspect, o);

  CLI::App* scores = add_verb(app, o, Verb::kScores, "scores", "Write the scores of all KV pairs");
  add_document(*scores, o);
  add_text(*scores, "--npy", o.output, "FILE",
           "float32 [scored layers, KV heads, tokens], natural logarithms")
      ->required();
  add_system(*scores, o.runtime);
  add_runtime(*scores, o.runtime);
  add_kv(*scores, o.runtime);
  add_chunk(*scores, o.compression);

  CLI::App* tokenize = add_verb(app, o, Verb::kTokenize, "tokenize", "Show the tokens of a text");
  add_model(*tokenize, o.runtime);
  tokenize->add_flag("--special", o.parse_special, "Control tokens in the text become their ids");
  add_json(*tokenize, o);
  add_text(*tokenize, "text", o.text, "TEXT", "The text, \"-\" for standard input")->required();
}

void add_serve(CLI::App& app, Options& o) {
  CLI::App* serve =
      add_verb(app, o, Verb::kServe, "serve", "Serve a model over HTTP, as OpenAI does");
  add_runtime(*serve, o.runtime);
  add_kv(*serve, o.runtime);
  add_serve_options(*serve, o.serve);
  serve->fallthrough();  // for --config
}

// What CLI11 can't see: text that is none.
void check_texts(const Options& o) {
  check_text(o.runtime.system.value_or(""), "--system");
  for (const std::string& question : o.questions) {
    check_text(question, "--question");
    if (question.empty()) {
      throw Error(ErrorKind::kUsage, "--question is empty");
    }
  }
  for (const std::string& stop : o.answer.stops) {
    check_text(stop, "--stop");
    if (stop.empty()) {
      throw Error(ErrorKind::kUsage, "--stop is empty");
    }
  }
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  ParsedOptions parsed;
  CLI::App app("Answers questions about documents whose KV cache was compressed (KVzip).",
               "pagezip");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_version_flag("--version", "pagezip " PAGEZIP_VERSION);
  app.footer(
      "Exit codes: 0 done, 1 run-time error, 2 usage or bad document, 3 bad model file,\n"
      "4 out of memory, 5 output can't be written, 130 and 143 ended by a signal.");
  add_answering_verbs(app, parsed.options);
  add_file_verbs(app, parsed.options);
  add_serve(app, parsed.options);
  app.set_config("--config", "", "Options of serve, as TOML or INI: [serve] port = 8080")
      ->option_text("FILE");
  // CLI11 would only say that a subcommand is required.
  const auto is_named = [&](const CLI::App* verb) { return verb->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_named).empty()) {
    throw Error(ErrorKind::kUsage, fmt::format("there is no command \"{}\"; --help lists them",
                                               to_printable(argv[1])));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    // CLI11 puts two empty lines before a group.
    parsed.print = CLI::detail::find_and_replace(app.help(), "\n\n\n", "\n\n");
    return parsed;
  } catch (const CLI::CallForVersion& version) {
    parsed.print = fmt::format("{}\nCPU kernels: {}\n", version.what(), cpu_kernels_isa());
    return parsed;
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorKind::kUsage, error.what());
  }
  if (app.get_subcommands().size() != 1) {
    throw Error(ErrorKind::kUsage, "one command is needed; --help lists them");
  }
  check_texts(parsed.options);
  return parsed;
}

}  // namespace pagezip
