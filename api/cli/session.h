// A loaded model with all that runs it.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "api/cli/options.h"
#include "api/cli/terminal.h"
#include "base/check.h"
#include "engine/loaded_model.h"
#include "engine/model_identity.h"
#include "engine/pipeline.h"
#include "engine/prompt.h"

namespace pagezip {

class Session {
 public:
  /// Loads the model. `compression` may be null: nothing will be scored. Before it reads weights,
  /// `check` may refuse the model (by an exception).
  using IdentityCheck = std::function<void(const ModelIdentity& identity)>;
  Session(const RuntimeOptions& options, const CompressionOptions* compression, Progress& progress,
          const IdentityCheck& check = {});

  const Kernels& kernels() const { return kernels_; }
  const Model& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return file_.tokenizer(); }
  const PromptFrame& frame() const { return frame_; }
  const PipelineOptions& pipeline_options() const { return pipeline_options_; }
  const ModelIdentity& identity() const { return file_.identity(); }
  int64_t context_max() const;
  double load_ms() const { return load_ms_; }

  /// Makes the pipeline with a pool of at least `blocks_needed` blocks. Throws Error(kOutOfMemory)
  /// if --pool-mib says less.
  void start(int64_t blocks_needed);
  /// REQUIRES: start() was called.
  Pipeline& pipeline() {
    CHECK(pipeline_.has_value());
    return *pipeline_;
  }

 private:
  RuntimeOptions options_;
  ModelFile file_;
  PromptFrame frame_;
  ThreadPool threads_;
  const Kernels& kernels_;
  PipelineOptions pipeline_options_;
  std::unique_ptr<const Model> model_;
  std::optional<Pipeline> pipeline_;
  double load_ms_ = 0;
};

}  // namespace pagezip
