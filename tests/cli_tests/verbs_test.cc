// What the verbs give, on a tiny model.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/cli_tests/command.h"
#include "tests/cli_tests/tiny_model.h"

namespace pagezip {
namespace {

using nlohmann::json;

class Verbs : public CliTest {
 protected:
  json ask_json(std::vector<std::string> more) const {
    more.push_back("--json");
    const Outcome outcome = ask(more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out);
  }
};

TEST_F(Verbs, HelpAndVersion) {
  const Outcome help = run({"ask", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.out.find("default 0.3"), std::string::npos);
  EXPECT_EQ(run({"--version"}).out.substr(0, 8), "pagezip ");
  EXPECT_NE(run({"--version"}).out.find("\nCPU kernels: "), std::string::npos);
  size_t column = 0;
  for (const char c : help.out) {
    column = c == '\n' ? 0 : column + 1;
    ASSERT_LE(column, 80u) << help.out;
  }
}

TEST_F(Verbs, AskStreamsTheAnswer) {
  const Outcome outcome = ask({});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"MiB -> ", "% of pairs kept", "prefill", "scoring", "hi\n", "tokens; first"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in " << outcome.out;
  }
  for (const char* stage : {"load ", "prefill ", "score ", "select ", "compact "}) {
    EXPECT_NE(outcome.err.find(stage), std::string::npos) << stage << " in " << outcome.err;
  }
  EXPECT_EQ(outcome.err.find('\x1b'), std::string::npos);
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
}

TEST_F(Verbs, JsonHasAllFields) {
  const json result = ask_json({"--keep", "0.25", "--question", "one", "--question", "two"});
  const json& document = result["document"];
  const int tokens = document["tokens"];
  EXPECT_GT(tokens, 100);
  EXPECT_GT(document["prefix_tokens"], 0);
  EXPECT_EQ(document["keep_ratio"], 0.25);
  EXPECT_EQ(document["compressed"], true);
  EXPECT_FALSE(document.contains("skipped_reason"));
  EXPECT_EQ(document["scored_layers"], json({0, 1}));
  const int kept = document["retained"][0][0].get<int>() + document["retained"][1][0].get<int>();
  EXPECT_EQ(kept, static_cast<int>(0.25 * 2 * tokens));
  EXPECT_DOUBLE_EQ(document["achieved_ratio"], kept / (2.0 * tokens));
  EXPECT_LT(document["kv_bytes"], document["kv_bytes_full"]);
  // Nothing but the compressed document is left in the pool.
  EXPECT_EQ(document["kv_bytes"], result["memory"]["pool_bytes_in_use"]);
  EXPECT_GT(result["memory"]["score_bytes"], 0);
  for (const char* stage : {"load_ms", "prefill_ms", "score_ms", "select_ms", "compact_ms"}) {
    EXPECT_GE(result["timings"][stage].get<double>(), 0) << stage;
  }
  ASSERT_EQ(result["answers"].size(), 2u);
  EXPECT_EQ(result["answers"][1]["question"], "two");
  for (const json& answer : result["answers"]) {
    EXPECT_TRUE(answer["text"].is_string());
    EXPECT_LE(answer["token_ids"].size(), 8u);
    EXPECT_GT(answer["prompt_tokens"], 0);
    EXPECT_GT(answer["first_token_ms"], 0);
    EXPECT_TRUE(answer["decode_tokens_per_s"].is_number());
    EXPECT_TRUE(answer["finish_reason"].is_string());
    EXPECT_FALSE(answer.contains("full"));
  }
}

TEST_F(Verbs, KeepingAllPairsAnswersAsTheFullDocument) {
  for (const char* page : {"16", "64"}) {
    const json result = ask_json({"--compare", "--keep", "1", "--page-tokens", page, "--question",
                                  "one", "--question", "two"});
    for (const json& answer : result["answers"]) {
      EXPECT_GT(answer["token_ids"].size(), 0u);
      EXPECT_EQ(answer["token_ids"], answer["full"]["token_ids"]);
      EXPECT_EQ(answer["text"], answer["full"]["text"]);
    }
  }
}

TEST_F(Verbs, QuestionsAreIndependent) {
  const json both = ask_json({"--question", "one", "--question", "two"});
  const json second = ask_json({"--question", "two"});
  EXPECT_EQ(both["answers"][1]["token_ids"], second["answers"][0]["token_ids"]);
}

TEST_F(Verbs, OptionsOfCompression) {
  const json uniform = ask_json({"--selector", "uniform", "--keep", "0.5"});
  EXPECT_EQ(uniform["document"]["retained"][0], uniform["document"]["retained"][1]);
  // The floor keeps more than the ratio asks for.
  const json floor = ask_json({"--keep", "0.01", "--min-per-head", "200"});
  EXPECT_EQ(floor["document"]["retained"], json({{200}, {200}}));
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--scorer", "kvzip-logit"},
                                             {"--chunk", "64"},
                                             {"--kv-dtype", "f32"},
                                             {"--kv-dtype", "bf16"},
                                             {"--backend", "reference", "--activations", "f32"},
                                             {"--pool-mib", "4"},
                                             {"--system", ""},
                                             {"--threads", "2"}}) {
    EXPECT_EQ(ask_json(more)["document"]["compressed"], true) << testing::PrintToString(more);
  }
}

TEST_F(Verbs, ShortDocumentsCanStayWhole) {
  for (const bool compare : {false, true}) {
    std::vector<std::string> more = {"--min-context", "5000"};
    if (compare) more.push_back("--compare");
    const json result = ask_json(more);
    EXPECT_EQ(result["document"]["compressed"], false);
    EXPECT_NE(result["document"]["skipped_reason"].get<std::string>().find("--min-context 5000"),
              std::string::npos);
    EXPECT_EQ(result["document"]["kv_bytes"], result["document"]["kv_bytes_full"]);
    EXPECT_EQ(result["document"]["achieved_ratio"], 1.0);
    EXPECT_EQ(result["answers"][0].contains("full"), compare);
  }
  EXPECT_NE(ask({"--min-context", "5000"}).out.find("not compressed"), std::string::npos);
}

TEST_F(Verbs, TheDocumentCanComeFromStandardInput) {
  const std::string document = read_file(path("document.txt"));
  const Outcome piped = run(ask_arguments({"--document", "-", "--json"}), document);
  ASSERT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(json::parse(piped.out)["answers"][0]["token_ids"],
            ask_json({})["answers"][0]["token_ids"]);
}

TEST_F(Verbs, SamplingIsReproducible) {
  const auto draw = [&](const char* seed) {
    return ask_json(
        {"--temperature", "2", "--seed", seed, "--max-tokens", "24"})["answers"][0]["token_ids"];
  };
  const json first = draw("1");
  EXPECT_EQ(first, draw("1"));
  EXPECT_NE(first, draw("2"));
}

TEST_F(Verbs, StopStringsEndTheAnswer) {
  const json whole = ask_json({"--temperature", "2", "--seed", "3", "--max-tokens", "24"});
  const std::string text = whole["answers"][0]["text"];
  size_t at = text.size() / 2;  // a printable character of the middle of the answer
  while (at < text.size() && (text[at] <= ' ' || text[at] > '~')) ++at;
  ASSERT_LT(at, text.size()) << text;
  const std::string stop = text.substr(at, 1);
  const json cut = ask_json(
      {"--temperature", "2", "--seed", "3", "--max-tokens", "24", "--stop", stop})["answers"][0];
  EXPECT_EQ(cut["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(cut["finish_reason"], "stop");
}

TEST_F(Verbs, ACompressedDocumentAnswersAsTheOneInMemory) {
  const json direct = ask_json({"--keep", "0.5", "--page-tokens", "32"});
  const Outcome compress =
      run({"compress", "--model", path("model.gguf"), "--document", path("document.txt"), "-o",
           path("document.pz"), "--keep", "0.5", "--page-tokens", "32", "--json"});
  ASSERT_EQ(compress.code, 0) << compress.err;
  const json written = json::parse(compress.out);
  EXPECT_EQ(written["file"]["bytes"], read_file(path("document.pz")).size());
  const Outcome query =
      run({"query", "--model", path("model.gguf"), "--document", path("document.pz"), "--question",
           "hi", "--max-tokens", "8", "--json"});
  ASSERT_EQ(query.code, 0) << query.err;
  const json asked = json::parse(query.out);
  EXPECT_EQ(asked["answers"][0]["token_ids"], direct["answers"][0]["token_ids"]);
  EXPECT_EQ(asked["document"]["retained"], direct["document"]["retained"]);

  const Outcome inspect = run({"inspect", path("document.pz")});
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_NE(inspect.out.find("50.0 % of pairs"), std::string::npos) << inspect.out;
  const json header = json::parse(run({"inspect", path("document.pz"), "--json"}).out);
  EXPECT_EQ(header["retained"], direct["document"]["retained"]);

  // A bit of the pages turned: found when it is read, not answered from.
  std::string damaged = read_file(path("document.pz"));
  damaged[damaged.size() / 2] ^= 1;
  write("damaged.pz", damaged);
  expect_error(
      run({"query", "--model", path("model.gguf"), "--document", path("damaged.pz"), "-q", "hi"}),
      3, "damaged.pz");

  // Another model, which could not even be loaded: the file says enough to refuse it.
  TinyModel other;
  other.left_out = "blk.1.ffn_up.weight";
  other.writer().write(path("other.gguf"));
  expect_error(
      run({"query", "--model", path("other.gguf"), "--document", path("document.pz"), "-q", "hi"}),
      3, "document.pz: does not fit: made with the model of fingerprint");
}

TEST_F(Verbs, ScoresAreAnArrayForNumPy) {
  const Outcome outcome = run({"scores", "--model", path("model.gguf"), "--document",
                               path("document.txt"), "--npy", path("scores.npy")});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string file = read_file(path("scores.npy"));
  const int tokens = ask_json({})["document"]["tokens"];
  ASSERT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const size_t header = static_cast<uint8_t>(file[8]) + 256u * static_cast<uint8_t>(file[9]);
  EXPECT_EQ((10 + header) % 64, 0u);
  EXPECT_NE(file.find("(2, 1, " + std::to_string(tokens) + ",)"), std::string::npos);
  ASSERT_EQ(file.size(), 10 + header + static_cast<size_t>(tokens) * 2 * sizeof(float));
  for (size_t at = 10 + header; at < file.size(); at += sizeof(float)) {
    float score = 0;
    std::memcpy(&score, file.data() + at, sizeof(float));
    ASSERT_TRUE(std::isfinite(score) && score <= 1e-3f) << score;
  }
}

TEST_F(Verbs, Tokenize) {
  const std::vector<std::string> base = {"tokenize", "--model", path("model.gguf")};
  const auto tokenize = [&](std::vector<std::string> more, const std::string& input) {
    more.insert(more.begin(), base.begin(), base.end());
    return run(more, input).out;
  };
  EXPECT_EQ(tokenize({"abcz"}, ""), "     258  \"abc\"\n     122  \"z\"\n");
  EXPECT_EQ(tokenize({"-"}, "\n"), "      10  \"\\n\"\n");
  EXPECT_EQ(tokenize({"--special", "<|im_end|>"}, ""), "     268  \"<|im_end|>\"\n");
  EXPECT_EQ(json::parse(tokenize({"--json", "abcz"}, ""))["token_ids"], json({258, 122}));
}

TEST_F(Verbs, ASignalEndsTheWorkQuickly) {
  write("long.txt", std::string(60000, 'x'));
  for (const auto& [signal, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143)}) {
    Command command(folder_.path(), ask_arguments({"--document", path("long.txt"), "--json"}), "");
    ASSERT_TRUE(command.wait_for_progress("load "));
    command.send(signal);
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome = command.finish();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
    expect_error(outcome, code, "interrupted");
    EXPECT_EQ(outcome.out, "");
  }
  // While a question is read, before the first word of its answer.
  ASSERT_EQ(run({"compress", "--model", path("model.gguf"), "--document", path("document.txt"),
                 "-o", path("document.pz")})
                .code,
            0);
  Command command(folder_.path(),
                  {"query", "--model", path("model.gguf"), "--document", path("document.pz"), "-q",
                   std::string(60000, 'x'), "--json"},
                  "");
  ASSERT_TRUE(command.wait_for_progress("read "));
  command.send(SIGINT);
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = command.finish();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  expect_error(outcome, 130, "interrupted");
}

}  // namespace
}  // namespace pagezip
