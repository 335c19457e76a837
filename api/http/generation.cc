#include "api/http/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "api/http/api_error.h"
#include "api/http/completion_logprobs.h"
#include "api/http/documents.h"
#include "api/http/json_text.h"
#include "api/http/target.h"
#include "api/http/timings.h"
#include "engine/utf8.h"

namespace pagezip::http {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// How often it is looked whether the client is still there.
constexpr std::chrono::milliseconds kLook{250};

double ms_between(SteadyTime from, SteadyTime to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// Where the document was when it was asked for.
std::string_view tier_of(const OutputUsage& usage) { return usage.was_on_disk ? "disk" : "memory"; }

json::value null_or(const json::object& object) {
  return object.empty() ? json::value(nullptr) : json::value(object);
}

// ---- one request's way back ----

struct ChoiceState {
  explicit ChoiceState(const Tokenizer& tokenizer) : logprobs(tokenizer) {}
  std::string text;  // unless streamed
  json::array chat_logprobs;
  CompletionLogprobs logprobs;
  bool echoed = false;
  std::optional<FinishReason> finish;
};

class Generation {
 public:
  Generation(Exchange& exchange, GenerationForm form, Service& service)
      : exchange_(exchange),
        form_(std::move(form)),
        service_(service),
        wakeup_(std::make_shared<Wakeup>(service.io())),
        id_(make_random_id(form_.chat ? "chatcmpl-" : "cmpl-")),
        created_(service.clock().unix_s()),
        start_(std::chrono::steady_clock::now()) {}
  // Whatever ends this ends what it asked for.
  ~Generation() {
    for (const auto& stream : streams_) {
      if (!stream->done()) {
        service_.cancel(stream->id());
      }
    }
  }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  void submit(std::vector<std::vector<TokenId>> prompts) {
    form_.request.wake = [wakeup = wakeup_] { wakeup->notify(); };
    for (std::vector<TokenId>& prompt : prompts) {
      GenerateRequest request = form_.request;
      if (form_.echo) {
        echoes_.push_back({service_.model().tokenizer().decode(prompt, false), prompt.front(), {}});
      }
      prompt_tokens_ += static_cast<int64_t>(prompt.size());
      request.prompt = std::move(prompt);
      std::shared_ptr<OutputStream> stream = service_.engine().submit(std::move(request));
      if (stream == nullptr) {
        throw busy("too many requests wait");
      }
      streams_.push_back(std::move(stream));
    }
    for (size_t i = 0; i < streams_.size() * form_.request.choices; ++i) {
      choices_.emplace_back(service_.model().tokenizer());
    }
  }

  asio::awaitable<void> run() {
    SteadyTime quiet_since = start_;
    while (true) {
      std::string events = take_all();
      if (form_.stream && !events.empty()) {
        co_await start_stream();
        co_await exchange_.write(events);
        quiet_since = std::chrono::steady_clock::now();
      }
      if (open_streams() == 0) {
        break;
      }
      if (exchange_.gone()) {
        throw ClientGone();
      }
      if (form_.stream && ms_between(quiet_since, std::chrono::steady_clock::now()) >
                              form_.ping_interval_s * 1000) {
        co_await start_stream();
        co_await exchange_.write(": ping\n\n");
        quiet_since = std::chrono::steady_clock::now();
      }
      const auto ping =
          std::chrono::milliseconds(static_cast<int64_t>(form_.ping_interval_s * 1000));
      co_await wakeup_->wait(std::min(kLook, ping + std::chrono::milliseconds(1)));
    }
    if (form_.stream) {
      co_await exchange_.write(last_events());
      co_await exchange_.end_stream();
    } else {
      Reply answer = json_text(to_text(whole()));
      answer.headers = headers();
      answer.headers.emplace_back("Server-Timing", server_timing(timings()));
      co_await exchange_.send(std::move(answer));
    }
  }

 private:
  static ApiError busy(const std::string& why) {
    return ApiError(429, "busy", why).with_header("Retry-After", "1");
  }

  ApiError error_of(const Refusal& refusal) const {
    switch (refusal.kind) {
      case RefusalKind::kBusy:
        return busy(refusal.message);
      case RefusalKind::kTooLarge:
        return ApiError(400, "context_length_exceeded", refusal.message,
                        form_.chat ? "messages" : "prompt")
            .with_field("n_prompt_tokens", prompt_tokens_)
            .with_field("n_ctx", service_.engine().context_max());
      case RefusalKind::kNotFound:
        return {404, "document_not_found", refusal.message};
      case RefusalKind::kNotReady:
        return ApiError(409, "document_not_ready", refusal.message).with_header("Retry-After", "2");
      case RefusalKind::kCancelled:
        return {503, "cancelled", "the server ended the request"};
      case RefusalKind::kInternal:
        break;
    }
    return {500, "server_error", refusal.message};
  }

  size_t open_streams() const {
    return static_cast<size_t>(std::count_if(streams_.begin(), streams_.end(),
                                             [](const auto& stream) { return !stream->done(); }));
  }

  OutputUsage usage() const {
    OutputUsage sum;
    sum.keep_ratio = streams_.front()->usage().keep_ratio;
    for (const auto& stream : streams_) {
      const OutputUsage one = stream->usage();
      sum.prompt_tokens += one.prompt_tokens;
      sum.cached_tokens += one.cached_tokens;
      sum.done_tokens += one.done_tokens;
      sum.document_tokens += one.document_tokens;
      sum.was_on_disk = sum.was_on_disk || one.was_on_disk;
    }
    return sum;
  }

  // Everything that came since the last call, as events if it is streamed.
  std::string take_all() {
    std::string events;
    if (form_.stream && form_.return_progress && !begun_) {
      add_progress(events);
    }
    for (size_t p = 0; p < streams_.size(); ++p) {
      while (auto event = streams_[p]->next(std::chrono::milliseconds(0))) {
        if (event->refusal) {
          throw error_of(*event->refusal);
        }
        if (event->prompt.empty()) {
          take(p, *event, events);
        } else {
          std::vector<TokenLogprob>& others = echoes_[p].others;
          std::move(event->prompt.begin(), event->prompt.end(), std::back_inserter(others));
        }
      }
    }
    return events;
  }

  void take(size_t prompt, const OutputEvent& event, std::string& events) {
    const size_t index = prompt * form_.request.choices + event.choice;
    ChoiceState& choice = choices_[index];
    if (event.token && predicted_++ == 0) {
      first_token_ = std::chrono::steady_clock::now();
    }
    if (event.finish) {
      if (*event.finish == FinishReason::kFailed) {
        throw ApiError(500, "server_error", "the model gave logits that are not numbers");
      }
      if (*event.finish == FinishReason::kCancelled) {
        throw ApiError(503, "cancelled", "the server ended the request");
      }
      choice.finish = event.finish;
    }
    if (form_.stream) {
      add_roles(events);
    }
    if (form_.echo && !std::exchange(choice.echoed, true)) {
      add_echo(index, events);
    }
    const json::object logprobs = logprobs_of(event, choice);
    if (!form_.stream) {
      choice.text += event.text;
      return;
    }
    if (event.text.empty() && logprobs.empty() && !event.finish) {
      return;
    }
    json::object one = choice_json(index, logprobs);
    if (form_.chat) {
      json::object delta;
      if (!event.text.empty()) {
        delta["content"] = event.text;
      }
      one["delta"] = std::move(delta);
    } else {
      one["text"] = event.text;
    }
    add_event(events, std::move(one), event.finish.has_value() && all_finished());
  }

  bool all_finished() const {
    return std::all_of(choices_.begin(), choices_.end(),
                       [](const ChoiceState& choice) { return choice.finish.has_value(); });
  }

  json::object choice_json(size_t index, const json::object& logprobs) const {
    json::object one;
    one["index"] = index;
    one["logprobs"] = null_or(logprobs);
    one["finish_reason"] = nullptr;
    if (const std::optional<FinishReason>& finish = choices_[index].finish) {
      one["finish_reason"] = *finish == FinishReason::kLength ? "length" : "stop";
    }
    return one;
  }

  // If more of the prompts is computed than was told.
  void add_progress(std::string& events) {
    const OutputUsage now = usage();
    if (now.done_tokens <= told_tokens_) {
      return;
    }
    told_tokens_ = now.done_tokens;
    json::object progress;
    progress["total"] = now.prompt_tokens + now.document_tokens;
    progress["cache"] = now.cached_tokens + now.document_tokens;
    progress["processed"] = now.done_tokens + now.document_tokens;
    progress["time_ms"] = ms_between(start_, std::chrono::steady_clock::now());
    progress["stage"] = "prefill";
    json::object one = choice_json(0, {});
    if (form_.chat) {
      one["delta"] = role();
    } else {
      one["text"] = "";
    }
    json::object chunk = frame();
    chunk["choices"] = json::array{std::move(one)};
    chunk["prompt_progress"] = std::move(progress);
    events += "data: " + to_text(chunk) + "\n\n";
  }

  static json::object role() { return {{"role", "assistant"}, {"content", nullptr}}; }

  // Before the first token of any choice.
  void add_roles(std::string& events) {
    if (std::exchange(begun_, true) || !form_.chat) {
      return;
    }
    for (size_t index = 0; index < choices_.size(); ++index) {
      json::object one = choice_json(index, {});
      one["finish_reason"] = nullptr;
      one["delta"] = role();
      add_event(events, std::move(one));
    }
  }

  // Before a choice's first token, or its end if it has none.
  void add_echo(size_t index, std::string& events) {
    const EchoedPrompt& prompt = echoes_[index / form_.request.choices];
    ChoiceState& choice = choices_[index];
    if (form_.request.prompt_logprobs >= 0) {
      choice.logprobs.add(prompt);
    }
    if (!form_.stream) {
      choice.text = prompt.text;
      return;
    }
    json::object one = choice_json(
        index, form_.request.prompt_logprobs >= 0 ? choice.logprobs.take() : json::object());
    one["finish_reason"] = nullptr;
    one["text"] = prompt.text;
    add_event(events, std::move(one));
  }

  // `last`: no choice comes after it.
  void add_event(std::string& events, json::object choice, bool last = false) const {
    json::object chunk = frame();
    chunk["choices"] = json::array{std::move(choice)};
    if (form_.include_usage) {
      chunk["usage"] = nullptr;
    } else if (last) {
      add_account(chunk);
    }
    events += "data: " + to_text(chunk) + "\n\n";
  }

  json::object token_logprob(TokenId token, float logprob) const {
    const std::string bytes = service_.model().tokenizer().piece(token);
    json::object one;
    one["token"] = to_valid_utf8(bytes);
    one["logprob"] = logprob;
    one["bytes"] = bytes_json(bytes);
    return one;
  }

  // Remembers them too, for the whole reply.
  json::object logprobs_of(const OutputEvent& event, ChoiceState& choice) {
    json::object result;
    // As OpenAI's, the end token is among an echo's log-probabilities: lm-eval takes all but the
    // last token for the prompt's.
    const std::optional<TokenId> token =
        form_.echo && event.end_token ? event.end_token : event.token;
    if (form_.request.top_logprobs < 0 || !token) {
      return result;
    }
    if (form_.chat) {
      json::object one = token_logprob(*token, event.logprob);
      json::array tops;
      for (const TopLogprob& top : event.tops) {
        tops.push_back(token_logprob(top.token, top.logprob));
      }
      one["top_logprobs"] = std::move(tops);
      if (!form_.stream) {
        choice.chat_logprobs.push_back(one);
      }
      result["content"] = json::array{std::move(one)};
      result["refusal"] = nullptr;
      return result;
    }
    choice.logprobs.add(*token, event.logprob, event.tops);
    return form_.stream ? choice.logprobs.take() : result;
  }

  // The fields that a reply and every event of a stream share.
  json::object frame() const {
    json::object reply;
    reply["id"] = id_;
    reply["object"] = !form_.chat    ? "text_completion"
                      : form_.stream ? "chat.completion.chunk"
                                     : "chat.completion";
    reply["created"] = created_;
    reply["model"] = service_.model_name();
    reply["system_fingerprint"] = "pagezip-" PAGEZIP_VERSION;
    return reply;
  }

  json::object usage_json() const {
    const OutputUsage now = usage();
    const int64_t prompt = now.prompt_tokens + now.document_tokens;
    json::object details;
    details["cached_tokens"] = now.cached_tokens + now.document_tokens;
    details["cache_write_tokens"] = now.prompt_tokens - now.cached_tokens;
    if (!form_.request.document.empty()) {
      details["document_tokens"] = now.document_tokens;
    }
    json::object usage;
    usage["prompt_tokens"] = prompt;
    usage["completion_tokens"] = predicted_;
    usage["total_tokens"] = prompt + predicted_;
    usage["prompt_tokens_details"] = std::move(details);
    return usage;
  }

  Timings timings() const {
    const OutputUsage now = usage();
    const SteadyTime end = std::chrono::steady_clock::now();
    const SteadyTime first = predicted_ > 0 ? first_token_ : end;
    return {now.cached_tokens + now.document_tokens, now.prompt_tokens - now.cached_tokens,
            ms_between(start_, first), predicted_, ms_between(first, end)};
  }

  json::value document_json() const {
    const OutputUsage now = usage();
    return json::object{
        {"id", form_.request.document}, {"keep_ratio", now.keep_ratio}, {"tier", tier_of(now)}};
  }

  json::object whole() {
    json::array choices;
    for (size_t index = 0; index < choices_.size(); ++index) {
      ChoiceState& choice = choices_[index];
      json::object logprobs;
      if (form_.request.top_logprobs >= 0 && form_.chat) {
        logprobs["content"] = choice.chat_logprobs;
        logprobs["refusal"] = nullptr;
      } else if (form_.request.top_logprobs >= 0) {
        logprobs = choice.logprobs.take();
      }
      json::object one = choice_json(index, logprobs);
      if (form_.chat) {
        one["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
      } else {
        one["text"] = choice.text;
      }
      choices.push_back(std::move(one));
    }
    json::object reply = frame();
    reply["choices"] = std::move(choices);
    reply["usage"] = usage_json();
    add_account(reply);
    return reply;
  }

  // How the request went.
  void add_account(json::object& reply) const {
    reply["timings"] = timings_json(timings());
    if (!form_.request.document.empty()) {
      reply["document"] = document_json();
    }
  }

  // A chunk without choices is for those alone who asked for usage: others take the first of each.
  std::string last_events() const {
    std::string events;
    if (form_.include_usage) {
      json::object chunk = frame();
      chunk["choices"] = json::array();
      chunk["usage"] = usage_json();
      add_account(chunk);
      events = "data: " + to_text(chunk) + "\n\n";
    }
    return events + "data: [DONE]\n\n";
  }

  std::vector<Header> headers() const {
    std::vector<Header> headers;
    const OutputUsage now = usage();
    const std::string& document = form_.request.document;
    if (!document.empty()) {
      headers.emplace_back("X-KV-Cache", fmt::format("document; id={}; ratio={}; tier={}", document,
                                                     now.keep_ratio, tier_of(now)));
      headers.emplace_back("X-KV-Affinity", document);
    } else {
      headers.emplace_back("X-KV-Cache", now.cached_tokens == 0                      ? "miss"
                                         : now.cached_tokens < now.prompt_tokens - 1 ? "partial"
                                                                                     : "hit");
    }
    return headers;
  }

  asio::awaitable<void> start_stream() {
    if (exchange_.started()) {
      co_return;
    }
    Reply head{200, "", "text/event-stream", headers()};
    head.headers.emplace_back("Cache-Control", "no-cache");
    head.headers.emplace_back("X-Accel-Buffering", "no");
    co_await exchange_.start_stream(std::move(head));
  }

  Exchange& exchange_;
  GenerationForm form_;
  Service& service_;
  std::shared_ptr<Wakeup> wakeup_;
  const std::string id_;
  const int64_t created_;
  const SteadyTime start_;
  SteadyTime first_token_;
  std::vector<std::shared_ptr<OutputStream>> streams_;  // one for each prompt
  std::vector<EchoedPrompt> echoes_;                    // likewise, if asked for
  std::vector<ChoiceState> choices_;                    // prompt by prompt
  int64_t prompt_tokens_ = 0;
  int64_t predicted_ = 0;
  bool begun_ = false;       // the first events of the stream were made
  int64_t told_tokens_ = 0;  // of prompt_progress
};

}  // namespace

asio::awaitable<void> generate(Exchange& exchange, GenerationForm form, Service& service,
                               const Tenant& tenant) {
  std::vector<std::vector<TokenId>> prompts = co_await make_prompts(form, service, tenant);
  Generation generation(exchange, std::move(form), service);
  generation.submit(std::move(prompts));
  co_await generation.run();
}

}  // namespace pagezip::http
