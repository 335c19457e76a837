// Writes the first inputs of the fuzzers: small files that are right, from which changes start.
//
//   make_corpus tests
//
// reads data/chat_templates.json there and writes fuzz/corpus/TARGET/seed-NAME. To be run again
// after a change of the document file's format, which makes the old seeds useless.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "paging/document.h"
#include "paging/document_file.h"
#include "tests/fuzz/targets.h"
#include "tests/tiny_tokenizer.h"

namespace pagezip::fuzz {
namespace {

std::string folder;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): of a program

std::string path_of(const std::string& target, const std::string& name) {
  std::filesystem::create_directories(folder + "/fuzz/corpus/" + target);
  return folder + "/fuzz/corpus/" + target + "/seed-" + name;
}

void write(const std::string& target, const std::string& name, std::string_view text) {
  std::ofstream(path_of(target, name), std::ios::binary) << text;
}

void write_numbered(const std::string& target, const std::vector<std::string>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) write(target, std::to_string(i), texts[i]);
}

void write_gguf() {
  // What an architecture reads, and a vocabulary of a few tokens.
  for (const std::string architecture : {"llama", "gemma3"}) {
    TinyVocabulary vocabulary;
    vocabulary.add("a");
    vocabulary.add("b");
    vocabulary.add_merge("a", "b");
    vocabulary.add("<|im_end|>", 3);
    const bool is_llama = architecture == "llama";
    GgufWriter writer = is_llama ? bpe_file(vocabulary) : spm_file(vocabulary, true);
    writer.add("general.architecture", architecture)
        .add(architecture + ".block_count", uint32_t{2})
        .add(architecture + ".embedding_length", uint32_t{32})
        .add(architecture + ".attention.head_count", uint32_t{2})
        .add(architecture + ".attention.head_count_kv", uint16_t{1})
        .add(architecture + ".feed_forward_length", int64_t{64})
        .add(architecture + ".context_length", uint64_t{512})
        .add(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f)
        .add(architecture + ".rope.freq_base", 1e4f)
        .add(architecture + ".rope.scaling.type", "linear")
        .add(architecture + ".attention.sliding_window", uint32_t{8})
        .add("general.alignment", uint32_t{32})
        .add("tokenizer.chat_template", "{{ messages[0].content }}{{ messages[1].content }}");
    const std::vector<std::byte> embedding(4 * 32 * sizeof(float));
    const std::vector<std::byte> factors(8 * sizeof(float), std::byte{0x3f});
    writer.add_tensor("token_embd.weight", WeightType::kF32, {32, 4}, embedding);
    writer.add_tensor("rope_freqs.weight", WeightType::kF32, {8}, factors);
    writer.write(path_of("gguf", architecture));
  }
}

void write_vocabularies() {
  const auto parts = [](std::initializer_list<std::string> list, char end) {
    std::string text;
    for (const std::string& part : list) (text += part) += end;
    return text;
  };
  // A token's first byte: its type, and 8 times its score.
  const std::string bpe = parts({"\tA",
                                 "\x09"
                                 "b",
                                 "\x11"
                                 "Ab",
                                 "\x1b<|im_end|>", "\x0c<t>"},
                                1);
  const std::string spm = parts({"\x0a<unk>", "\x0b<s>", "\x0b</s>", "\x0e<0x41>",
                                 "\x09"
                                 "a",
                                 "\x11"
                                 "b",
                                 "\x21"
                                 "ab",
                                 "\x19\xe2\x96\x81", "\x0c<t>"},
                                1);
  write_numbered("vocabulary", {"\3" + parts({bpe, parts({"A b"}, 1)}, 0) + "AbA<|im_end|><t>b",
                                "\x09" + parts({bpe, parts({"A b"}, 1)}, 0) + "Ab AAbb\n\xff",
                                "\2" + parts({spm, ""}, 0) + "ab A<t>\xc3\xa9</s>aab",
                                std::string("\0", 1) + parts({spm, ""}, 0) + " ab"});
}

void write_texts() {
  const std::vector<std::string> texts = {
      "Hello, world! It's 12345 o'clock;\n\n  caf\xc3\xa9 "
      "\xf0\x9f\x98\x80\t\xe4\xbd\xa0\xe5\xa5\xbd",
      "aaaaaaa abcabc  <tool><|im_end|><|im_start|>",
      "\xe2\x96\x81"
      "ab </s><unk>\n\n\xff\xc3",
      "\xed\xa0\x80 \xf4\x90\x80\x80 \xe2\x82 \xc0\xaf"};
  write_numbered("utf8", texts);
  for (size_t i = 0; i < texts.size(); ++i) {
    for (const char choice : {0, 3, 5, 6}) {
      write("tokenizer", std::to_string(i) + "-" + std::to_string(choice), choice + texts[i]);
    }
  }
  const std::string zero(1, '\0');
  write_numbered("messages",
                 {"user" + zero + "hi" + zero + "assistant" + zero + "<|im_end|>\n<|im_start|>",
                  "<|im_end|>" + zero + "a|im_start|> <|", "|>" + zero + "start",
                  "u" + zero + "x|<a\xff\xc3\xa9" + zero});
}

void write_templates() {
  std::ifstream file(folder + "/data/chat_templates.json");
  std::set<std::string> sources;
  for (const auto& row : nlohmann::json::parse(file)) {
    const std::string source = row["template"];
    if (source.size() < 700) sources.insert(source);
  }
  sources.insert({
      "{% set c = messages[1].content %}{{ c | trim | upper }}{{ c.split('|') | join(', ') }}",
      "{%- for k, v in {'a': [1, 2.5, none, true]}.items() -%}{{ k ~ v | tojson(indent=2) }}"
      "{%- endfor -%}",
      "{% macro m(a, b='x') %}<{{ a }}{{ b }}>{% endmacro %}{{ m('y') }}{{ m('y', b='z') }}",
      "{% set n = namespace(i=0) %}{% for m in messages if m.role == 'user' %}"
      "{% set n.i = n.i + loop.index0 %}{% if loop.last %}{{ n.i }}{% endif %}{% endfor %}",
      "{{ messages | map(attribute='role') | list | last }}{{ messages[-1]['content'][::-1] }}",
      "{{ (1 + 2 * 3 - 7 // 2 % 4) if 'a' in 'abc' and not false else raise_exception('no') }}",
      "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }}",
      "{{ strftime_now('%d %b %Y') }}{{ range(3) | list }}{{ x is defined }}{# comment #}",
      "{% set t %}({{ messages[0].content }}){% endset %}{{ t.replace('B', '-') }}{{ 'a' * 3 }}",
  });
  write_numbered("template", {sources.begin(), sources.end()});
}

struct DocumentSeed {
  int64_t length;
  int64_t prefix_length;
  uint64_t kept;
  bool full;
  bool scores;
};

void write_document(const std::string& name, const DocumentSeed& seed) {
  DocumentWorld world;
  Sequence sequence(world.pool, world.groups, 0);
  auto blocks = world.pool.reserve(sequence.blocks_needed(seed.length));
  CHECK(blocks.has_value());
  sequence.grow(seed.length, *blocks);
  sequence.drop_behind(seed.length);
  auto document = Document::full(sequence, seed.prefix_length);
  if (!seed.full) {
    KeptSets sets{1, 2, {0, seed.kept, seed.kept}, {}};
    for (uint32_t pair = 0; pair < seed.kept; ++pair) sets.pairs.push_back(pair);
    DocumentBuilder builder(document, std::move(sets));
    auto own = world.pool.reserve(builder.blocks_needed());
    CHECK(own.has_value());
    builder.take_blocks(*own);
    document = builder.finish();
  }
  DocumentIdentity identity;
  identity.shape = world.shape;
  for (int64_t i = 0; i < seed.length; ++i) {
    (i < seed.prefix_length ? identity.prefix_ids : identity.context_ids)
        .push_back(static_cast<TokenId>(i));
  }
  identity.scorer = "kvzip";
  identity.scorer_version = 1;
  identity.chunk_tokens = 2048;
  identity.version = {seed.full, seed.full ? "" : "global", seed.full ? 1 : 0.5, 0};
  std::shared_ptr<ScoreSet> scores;
  if (seed.scores) {
    scores = std::make_shared<ScoreSet>(ScoreSet{1, 2, seed.length - seed.prefix_length, {}});
    scores->scores.resize(static_cast<size_t>(scores->pairs()), -1.5f);
  }
  const DocumentListing listing{"doc_1", "a name", {Scope::Kind::kGroup, "all"}, 5, 6, true, 7};
  save_document(path_of("document", name), *document, identity, listing, scores);
}

int run(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_corpus FOLDER-OF-TESTS\n");
    return 2;
  }
  folder = argv[1];
  write_gguf();
  write_vocabularies();
  write_texts();
  write_templates();
  write_document("short", {12, 5, 3, false, false});
  write_document("prefix", {20, 17, 2, false, true});
  write_document("full", {20, 3, 0, true, true});
  return 0;
}

}  // namespace
}  // namespace pagezip::fuzz

int main(int argc, char** argv) { return pagezip::fuzz::run(argc, argv); }
