// The serving engine on the CUDA backend in the simulator: its pool lies in device memory.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/temp_folder.h"
#include "tests/tiny_engine.h"

namespace pagezip {
namespace {

class CudaEngineTest : public testing::TestWithParam<const char*>, protected TinyWorld {
 protected:
  CudaEngineTest() : TinyWorld(GetParam(), cuda_kernels()) {
    cuda_sim::options() = {1, true};
    options.folder = folder_.path();
  }
  ~CudaEngineTest() override { cuda_sim::options() = {}; }

  void make_document(Engine& e) const {
    DocumentRequest d;
    d.tenant = "a";
    d.listing.id = "d";
    d.prefix = tokens(5, 1);
    d.context = tokens(40, 7);
    d.prompts = prompts();
    d.versions = {{0.5, false, 0}};
    const auto task = e.create_document(d);
    drive(e);
    ASSERT_EQ(task->status().state, DocumentTask::State::kDone) << task->status().error;
  }
  std::shared_ptr<OutputStream> submit(Engine& e, uint64_t seed, int choices = 1) const {
    GenerateRequest r;
    r.tenant = "a";
    r.document = "d";
    r.prompt = tokens(4, seed);
    r.output_max = 5;
    r.choices = choices;
    r.ignore_end = true;
    return e.submit(r);
  }
  static std::vector<TokenId> answer(const std::shared_ptr<OutputStream>& stream) {
    std::vector<TokenId> answer;
    for (const OutputEvent& event : read(*stream)) {
      EXPECT_FALSE(event.refusal.has_value()) << event.refusal->message;
      if (event.token && event.choice == 0) {
        answer.push_back(*event.token);
      }
    }
    return answer;
  }

 private:
  TempFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(TinyModels, CudaEngineTest, tiny_models(), tiny_model_name);

TEST_P(CudaEngineTest, RequestsTogetherAnswerAsAloneAndAfterARestart) {
  std::vector<std::vector<TokenId>> alone;
  {
    const auto e = engine();
    make_document(*e);
    for (uint64_t seed = 20; seed < 23; ++seed) {
      const auto stream = submit(*e, seed);
      drive(*e);
      alone.push_back(answer(stream));
      EXPECT_EQ(alone.back().size(), 5U);
    }
  }
  const auto e = engine();  // the document comes from its file, back to the device
  std::vector<std::shared_ptr<OutputStream>> streams;
  for (uint64_t seed = 20; seed < 23; ++seed) {
    streams.push_back(submit(*e, seed, 2));
  }
  drive(*e);
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_EQ(answer(streams[i]), alone[i]);
  }
}

}  // namespace
}  // namespace pagezip
