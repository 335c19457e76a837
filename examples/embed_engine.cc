// Tier 3, engine: a document is compressed while questions are answered, then many questions share
// it.
//
//   embed_engine MODEL.gguf
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pagezip.hpp>
#include <string>
#include <vector>

namespace {

using namespace pagezip::embed;

constexpr const char* kId = "minutes";

void expect(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "embed_engine: not so: %s\n", what);
    std::exit(1);
  }
}

std::string make_text() {
  std::string text;
  for (int i = 1; i <= 20; ++i) {
    text += "Item " + std::to_string(i) + ": the committee met in room " + std::to_string(i * 7) +
            ", and nobody objected.\n";
  }
  return text;
}

pagezip_generate_request question(const char* text) {
  auto request = sized<pagezip_generate_request>();
  request.text = text;
  request.text_bytes = std::strlen(text);
  request.output_max = 24;
  request.ignore_end = 1;  // so that the models of the tests say something
  return request;
}

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  pagezip_usage usage;
};

Answer read(Stream& stream) {
  Answer answer;
  while (true) {
    const pagezip_event event = stream.next(60'000);
    answer.text.append(event.text, event.text_bytes);
    switch (event.kind) {
      case PAGEZIP_EVENT_TOKEN:
        answer.tokens.push_back(event.token);
        break;
      case PAGEZIP_EVENT_FINISHED:
        expect(event.finish == PAGEZIP_FINISH_LENGTH, "the answer is as long as asked for");
        answer.usage = stream.usage();
        break;
      case PAGEZIP_EVENT_CLOSED:
        return answer;
      default:
        std::fprintf(stderr, "embed_engine: no answer: %s\n", event.text);
        std::exit(1);
    }
  }
}

Task compress(Engine& engine, const std::string& text) {
  const double ratios[] = {0.2, 0.4};
  auto request = sized<pagezip_compress_request>();
  request.id = kId;
  request.text = text.data();
  request.text_bytes = text.size();
  request.keep_ratios = ratios;
  request.keep_ratio_count = 2;
  return engine.compress(request);
}

void wait(Task& task) {
  while (true) {
    const pagezip_task_status status = task.wait(500);
    if (status.state == PAGEZIP_TASK_FAILED) {
      std::fprintf(stderr, "embed_engine: %s\n", status.error);
      std::exit(1);
    }
    std::printf("%s: %lld of %lld\n", status.stage, static_cast<long long>(status.done),
                static_cast<long long>(status.total));
    if (status.state == PAGEZIP_TASK_DONE) {
      std::printf("%lld bytes of KV -> %lld in two versions\n",
                  static_cast<long long>(status.full_bytes), static_cast<long long>(status.bytes));
      expect(status.bytes > 0 && status.bytes < status.full_bytes,
             "two versions are less than one");
      return;
    }
  }
}

void run(const char* path) {
  const Model model(path);
  const pagezip_model_info info = model.info();
  std::printf("%d layers, %d tokens\n", info.layers, info.vocab);
  auto options = sized<pagezip_engine_options>();
  options.pool_bytes = 256 << 20;
  options.context_max = 4096;
  Engine engine(model, options);

  const std::string text = make_text();
  Task task = compress(engine, text);
  Stream beside = engine.submit(question("What do you know?"));
  const Answer first = read(beside);
  expect(first.tokens.size() == 24, "a request beside the document is answered");
  wait(task);

  // The same question of eight readers: greedy, so all get the same.
  auto asked = question("Where was item 7 discussed?");
  asked.document = kId;
  std::vector<Stream> streams;
  for (int i = 0; i < 8; ++i) {
    streams.push_back(engine.submit(asked));
  }
  const Answer answer = read(streams[0]);
  for (size_t i = 1; i < streams.size(); ++i) {
    expect(read(streams[i]).tokens == answer.tokens, "who shares a document gets the same");
  }
  expect(answer.usage.keep_ratio == 0.2, "the smallest version serves unless another is asked for");
  expect(answer.usage.document_tokens >= static_cast<int64_t>(model.tokenize(text).size()),
         "the whole document stands before the question");
  asked.keep_ratio = 0.4;
  Stream larger = engine.submit(asked);
  expect(read(larger).usage.keep_ratio == 0.4, "a version can be asked for");
  std::printf("answer: %s\n", answer.text.c_str());

  const DocumentList documents = engine.documents(nullptr);
  for (size_t i = 0; i < documents.size(); ++i) {
    const pagezip_listed_document document = documents.document(i);
    std::printf("%s: %lld tokens, %zu versions\n", document.id,
                static_cast<long long>(document.tokens), document.version_count);
  }
  expect(documents.size() == 1, "the document is listed");

  engine.drop_document(nullptr, kId);
  Stream late = engine.submit(asked);
  expect(late.next(60'000).kind == PAGEZIP_EVENT_REFUSED, "a dropped document isn't found");
  const pagezip_stats stats = engine.stats();
  std::printf("%lld steps, %lld rows decoded, %lld scored\n", static_cast<long long>(stats.steps),
              static_cast<long long>(stats.decode_rows), static_cast<long long>(stats.score_rows));
  expect(stats.score_rows > 0 && stats.decode_rows > 0, "the engine has worked");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: embed_engine MODEL.gguf\n");
    return 2;
  }
  try {
    run(argv[1]);
  } catch (const Error& error) {
    std::fprintf(stderr, "embed_engine: %s\n", error.what());
    return 1;
  }
  std::printf("ok\n");
  return 0;
}
