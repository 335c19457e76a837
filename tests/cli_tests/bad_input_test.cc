// Every kind of bad input: the exit code, and one line that says what is wrong.

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "tests/cli_tests/command.h"
#include "tests/cli_tests/tiny_model.h"

namespace pagezip {
namespace {

using BadInput = CliTest;

struct BadArgument {
  std::vector<std::string> more;  // arguments of ask
  int code;
  std::string fragment;
};

TEST_F(BadInput, ArgumentsAreRefusedBeforeTheModelIsLoaded) {
  const std::vector<BadArgument> table = {
      {{"--keep", "0"}, 2, "\"0\" is not a number in (0, 1]"},
      {{"--keep", "-1"}, 2, "\"-1\" is not a number in (0, 1]"},
      {{"--keep", "1.5"}, 2, "\"1.5\" is not a number in (0, 1]"},
      {{"--keep", "nan"}, 2, "\"nan\" is not a number in (0, 1]"},
      {{"--keep", "inf"}, 2, "\"inf\" is not a number in (0, 1]"},
      {{"--keep", "abc"}, 2, "\"abc\" is not a number in (0, 1]"},
      {{"--keep", "0.5x"}, 2, "\"0.5x\" is not a number in (0, 1]"},
      {{"--keep", ""}, 2, "--keep"},
      {{"--keep"}, 2, "--keep"},
      {{"--keep", "0.5", "--keep", "0.4"}, 2, "--keep"},
      {{"--flag-that-is-none"}, 2, "--flag-that-is-none"},
      {{"stray"}, 2, "stray"},
      {{"--selector", "best"}, 2, "\"best\" is none of global|uniform"},
      {{"--scorer", "h2o"}, 2, "\"h2o\" is none of kvzip|kvzip-logit"},
      {{"--kv-dtype", "f8"}, 2, "\"f8\" is none of f16|bf16|f32"},
      {{"--page-tokens", "17"}, 2, "\"17\" is none of 16|32|64"},
      {{"--backend", "tpu"}, 2, "\"tpu\" is none of cpu|cuda|reference"},
      {{"--activations", "q4"}, 2, "\"q4\" is none of q8|f32"},
      {{"--min-per-head", "-1"}, 2, "--min-per-head"},
      {{"--min-context", "x"}, 2, "--min-context"},
      {{"--chunk", "0"}, 2, "--chunk"},
      {{"--pool-mib", "0"}, 2, "--pool-mib"},
      {{"--pool-mib", "99999999999"}, 2, "--pool-mib"},
      {{"--context", "0"}, 2, "--context"},
      {{"--threads", "0"}, 2, "--threads"},
      {{"--max-tokens", "0"}, 2, "--max-tokens"},
      {{"--temperature", "-0.1"}, 2, "--temperature"},
      {{"--temperature", "nan"}, 2, "--temperature"},
      {{"--top-k", "-1"}, 2, "--top-k"},
      {{"--top-p", "0"}, 2, "--top-p"},
      {{"--top-p", "1.1"}, 2, "--top-p"},
      {{"--min-p", "2"}, 2, "--min-p"},
      {{"--repetition-penalty", "0"}, 2, "--repetition-penalty"},
      {{"--seed", "-1"}, 2, "--seed"},
      {{"--seed", "99999999999999999999"}, 2, "--seed"},
      {{"--stop", ""}, 2, "--stop is empty"},
      {{"--question", ""}, 2, "--question is empty"},
      {{"--question", "\xff"}, 2, "--question is not UTF-8"},
      {{"--system", "a\xc3"}, 2, "--system is not UTF-8"},
      {{"--document", "/no/such/file"}, 2, "/no/such/file: No such file or directory"},
      {{"--document", "/"}, 2, "cannot read the document /: Is a directory"},
  };
  // A model that isn't there is found last.
  for (const BadArgument& row : table) {
    SCOPED_TRACE(testing::PrintToString(row.more));
    std::vector<std::string> more = row.more;
    more.insert(more.end(), {"--model", "/no/such/model"});
    const Outcome outcome = ask(more);
    expect_error(outcome, row.code, row.fragment);
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(BadInput, BackendThatIsNotThere) {
  const Outcome outcome = ask({"--backend", "cuda"});
  if (outcome.code == 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  const bool is_built_in = outcome.code == 1;
  const char* what =
      is_built_in ? "no CUDA device can be used: " : "this build has no CUDA kernels";
  const int code = is_built_in ? 1 : 2;
  expect_error(outcome, code, what);
  expect_error(run({"serve", "--model", path("model.gguf"), "--backend", "cuda"}), code, what);
}

TEST_F(BadInput, VerbsAndWhatTheyRequire) {
  expect_error(run({}), 2, "one command is needed");
  expect_error(run({"serve-coffee"}), 2, "there is no command \"serve-coffee\"");
  expect_error(run({"ask", "--document", "x", "--question", "y"}), 2, "--model is required");
  expect_error(run({"ask", "--model", "x", "--question", "y"}), 2, "--document is required");
  expect_error(run({"ask", "--model", "x", "--document", "y"}), 2, "--question is required");
  expect_error(run({"compress", "--model", "x", "--document", "y"}), 2, "--output is required");
  expect_error(run({"scores", "--model", "x", "--document", "y"}), 2, "--npy is required");
  expect_error(run({"inspect"}), 2, "file is required");
  expect_error(run({"tokenize", "--model", path("model.gguf")}), 2, "text is required");
  expect_error(run({"tokenize", "--model", path("model.gguf"), "\xff"}), 2, "not UTF-8");
}

TEST_F(BadInput, Documents) {
  write("empty", "");
  write("binary", std::string("PK\x03\x04\0\0", 6));
  write("latin1", "caf\xe9 au lait");
  write("cut", "caf\xc3");
  expect_error(ask({"--document", path("empty")}), 2, "is empty");
  expect_error(ask({"--document", path("binary")}), 2,
               "is binary, not text: a NUL byte at offset 4");
  expect_error(ask({"--document", path("latin1")}), 2, "is not UTF-8: byte 0xe9 at offset 3");
  expect_error(ask({"--document", path("cut")}), 2, "is not UTF-8: byte 0xc3 at offset 3");
  expect_error(run(ask_arguments({"--document", "-"}), ""), 2, "standard input is empty");
}

TEST_F(BadInput, WhatDoesNotFit) {
  expect_error(ask({"--context", "64"}), 2, "the document is too long");
  expect_error(ask({"--context", "65537"}), 2, "above the model's limit of 65536");
  expect_error(ask({"--question", std::string(70000, 'q')}), 2, "question 1 is too long");
  write("long.txt", std::string(8000, 'x'));
  expect_error(ask({"--document", path("long.txt"), "--pool-mib", "1"}), 4,
               "the KV pool is too small: this job needs --pool-mib 3");
}

TEST_F(BadInput, Outputs) {
  const std::vector<std::string> scores = {
      "scores", "--model", path("model.gguf"), "--document", path("document.txt"), "--npy"};
  std::vector<std::string> compress = {
      "compress", "--model", path("model.gguf"), "--document", path("document.txt"), "-o"};
  const auto to = [](std::vector<std::string> arguments, const std::string& file) {
    arguments.push_back(file);
    return arguments;
  };
  for (const auto& arguments : {scores, compress}) {
    expect_error(run(to(arguments, "/no/such/folder/file")), 5, "No such file or directory");
    expect_error(run(to(arguments, folder_.path())), 5, "Is a directory");
    expect_error(run(to(arguments, path("model.gguf") + "/file")), 5, "Not a directory");
  }
  expect_error(run(to(scores, "/dev/full")), 5, "No space left on device");
  expect_error(run(to(compress, "/dev/full")), 5, "not a regular file");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  for (const char* json : {"--json", "--compare"}) {
    expect_error(run(ask_arguments({json}), "", "/dev/full"), 5, "No space left on device");
  }
  expect_error(run({"--help"}, "", "/dev/full"), 5, "No space left on device");
}

TEST_F(BadInput, ChatTemplates) {
  write("odd.jinja", "{% include 'other' %}");
  write("silent.jinja", "hello");
  expect_error(ask({"--chat-template", "/no/such"}), 2, "cannot read the chat template /no/such");
  expect_error(ask({"--chat-template", path("odd.jinja")}), 2, "include");
  expect_error(ask({"--chat-template", path("silent.jinja")}), 3, "user's text");
  TinyModel model;
  model.chat_template = "{% include 'other' %}";
  model.writer().write(path("odd.gguf"));
  expect_error(ask({"--model", path("odd.gguf")}), 3, "include");
  EXPECT_EQ(ask({"--model", path("odd.gguf"), "--chat-template", path("silent.jinja")}).code, 3);
}

TEST_F(BadInput, ModelsThatAreNone) {
  expect_error(ask({"--model", "/no/such/model"}), 3, "No such file or directory");
  expect_error(ask({"--model", folder_.path()}), 3, folder_.path());
  expect_error(ask({"--model", path("document.txt")}), 3, "document.txt");
  write("empty.gguf", "");
  expect_error(ask({"--model", path("empty.gguf")}), 3, "empty.gguf");
  expect_error(run({"inspect", path("model.gguf")}), 3, "model.gguf");
  expect_error(run({"inspect", "/no/such"}), 3, "No such file or directory");
  expect_error(
      run({"query", "--model", path("model.gguf"), "--document", path("document.txt"), "-q", "hi"}),
      3, "document.txt");
}

TEST_F(BadInput, ModelsCutShort) {
  const std::string whole = read_file(path("model.gguf"));
  for (size_t i = 0; i < 20; ++i) {
    // Half of the cuts in the metadata, which is the shorter part.
    const size_t size = i < 10 ? i * 900 : whole.size() * i / 20;
    SCOPED_TRACE(size);
    write("cut.gguf", whole.substr(0, size));
    expect_error(ask({"--model", path("cut.gguf")}), 3, "cut.gguf");
  }
}

struct BrokenModel {
  std::string what;
  std::function<void(TinyModel&)> break_it;
  std::string fragment;
};

TEST_F(BadInput, ModelsThatContradictThemselves) {
  const std::vector<BrokenModel> table = {
      {"architecture", [](TinyModel& m) { m.architecture = "mamba"; }, "architecture \"mamba\""},
      {"no layers", [](TinyModel& m) { m.layers = 0; }, "block_count = 0"},
      {"many layers", [](TinyModel& m) { m.layers = 1u << 31; }, "block_count"},
      {"a layer more", [](TinyModel& m) { m.layers = 3; }, "blk.2.attn_norm.weight is missing"},
      {"no width", [](TinyModel& m) { m.hidden = 0; }, "embedding_length = 0"},
      {"other width", [](TinyModel& m) { m.hidden = 128; }, "shape"},
      {"no heads", [](TinyModel& m) { m.heads = 0; }, "head_count = 0"},
      {"odd heads", [](TinyModel& m) { m.heads = 3; }, "3 heads"},
      {"small heads", [](TinyModel& m) { m.heads = 8; }, "head length 8"},
      {"no KV heads", [](TinyModel& m) { m.kv_heads = 0; }, "head_count_kv = 0"},
      {"no context", [](TinyModel& m) { m.context = 0; }, "context_length = 0"},
      {"tensor", [](TinyModel& m) { m.left_out = "blk.1.ffn_up.weight"; },
       "ffn_up.weight is missing"},
      {"shape", [](TinyModel& m) { m.transposed = "blk.0.attn_k.weight"; }, "shape"},
      {"type", [](TinyModel& m) { m.mistyped = "blk.0.attn_k.weight"; }, "199"},
  };
  for (const BrokenModel& row : table) {
    SCOPED_TRACE(row.what);
    TinyModel model;
    row.break_it(model);
    model.writer().write(path("broken.gguf"));
    expect_error(ask({"--model", path("broken.gguf")}), 3, row.fragment);
  }
}

TEST_F(BadInput, ModelsOfAbsurdCounts) {
  const std::string whole = read_file(path("model.gguf"));
  for (const size_t offset : {8, 16}) {  // the tensors, and the keys
    std::string absurd = whole;
    absurd.replace(offset, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f");
    write("absurd.gguf", absurd);
    expect_error(ask({"--model", path("absurd.gguf")}), 3, "absurd.gguf");
  }
  std::string magic = whole;
  magic[3] = 'X';
  write("magic.gguf", magic);
  expect_error(ask({"--model", path("magic.gguf")}), 3, "magic.gguf");
}

}  // namespace
}  // namespace pagezip
