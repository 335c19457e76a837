// A light load for the server: many clients that stream answers about one document, and one that
// asks /health. One thread, one poll(): it shares the machine with what it measures.
//
//   http_load --port 8080 --document doc_... --clients 200 --seconds 60 --tokens 64
//
// Prints one JSON object: answers, 429s, other failures, tokens a second, /health's times, and the
// server's memory if --pid says whose.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  int port = 8080;
  std::string document;
  size_t clients = 200;
  int seconds = 60;
  int tokens = 64;
  int pid = 0;
};

struct Totals {
  int64_t answers = 0;
  int64_t busy = 0;
  int64_t failures = 0;
  int64_t events = 0;
  std::vector<double> health_ms;
};

// One connection that asks, reads to the end, and asks again.
struct Client {
  int fd = -1;
  std::string reply;
  Clock::time_point begun;
  Clock::time_point not_before;  // a refused client waits
};

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return -1;
  }
  fcntl(fd, F_SETFL, O_NONBLOCK);
  return fd;
}

std::string question(const Arguments& a, size_t number) {
  const std::string body = fmt::format(
      R"({{"messages":[{{"role":"user","content":[{{"type":"file","file":{{"file_id":"{}"}}}},)"
      R"({{"type":"text","text":"Question {}: what is this about?"}}]}}],"stream":true,)"
      R"("temperature":0,"ignore_eos":true,"max_tokens":{}}})",
      a.document, number, a.tokens);
  return fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
      "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
}

void begin(Client& client, int port, const std::string& request) {
  client.fd = connect_to(port);
  client.reply.clear();
  client.begun = Clock::now();
  if (client.fd >= 0 &&
      write(client.fd, request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
    close(client.fd);
    client.fd = -1;
  }
}

// True: the reply is complete.
bool read_some(Client& client) {
  char part[16384];
  const ssize_t got = read(client.fd, part, sizeof(part));
  if (got > 0) {
    client.reply.append(part, static_cast<size_t>(got));
    return false;
  }
  return got == 0 || errno != EAGAIN;
}

void finish(Client& client, Totals& totals) {
  close(client.fd);
  client.fd = -1;
  const std::string& reply = client.reply;
  if (reply.starts_with("HTTP/1.1 200") && reply.find("data: [DONE]") != std::string::npos) {
    ++totals.answers;
    for (size_t at = reply.find("data: {"); at != std::string::npos;
         at = reply.find("data: {", at + 1)) {
      ++totals.events;
    }
  } else if (reply.starts_with("HTTP/1.1 429")) {
    ++totals.busy;
    client.not_before = Clock::now() + std::chrono::seconds(1);
  } else {
    ++totals.failures;
    std::fprintf(stderr, "http_load: %s\n", reply.substr(0, 300).c_str());
  }
}

double resident_mib(int pid) {
  std::ifstream in(fmt::format("/proc/{}/statm", pid));
  int64_t size = 0;
  int64_t resident = 0;
  in >> size >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0
                        : values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

void run(const Arguments& a) {
  static constexpr std::chrono::milliseconds kHealthEvery{50};
  std::vector<Client> clients(a.clients + 1);  // the last one asks /health
  Client& health = clients.back();
  Totals totals;
  size_t number = 0;
  const auto end = Clock::now() + std::chrono::seconds(a.seconds);
  auto report = Clock::now() + std::chrono::seconds(a.seconds / 4);
  double warm_mib = 0;
  std::vector<pollfd> waiting;
  while (Clock::now() < end) {
    if (warm_mib == 0 && Clock::now() > report) {
      warm_mib = resident_mib(a.pid);
    }
    waiting.clear();
    for (Client& client : clients) {
      if (client.fd < 0 && Clock::now() >= client.not_before) {
        begin(client, a.port,
              &client == &health ? "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
                                 : question(a, number++));
      }
      waiting.push_back({client.fd, POLLIN, 0});
    }
    poll(waiting.data(), waiting.size(), 10);
    for (size_t i = 0; i < clients.size(); ++i) {
      Client& client = clients[i];
      if (client.fd < 0 || waiting[i].revents == 0 || !read_some(client)) {
        continue;
      }
      if (&client == &health) {
        totals.health_ms.push_back(
            std::chrono::duration<double, std::milli>(Clock::now() - client.begun).count());
        totals.failures += client.reply.starts_with("HTTP/1.1 200") ? 0 : 1;
        close(client.fd);
        client.fd = -1;
        client.not_before = Clock::now() + kHealthEvery;
      } else {
        finish(client, totals);
      }
    }
  }
  fmt::print(
      "{{\"clients\": {}, \"seconds\": {}, \"answers\": {}, \"busy\": {}, \"failures\": {}, "
      "\"events_per_s\": {:.1f}, \"health_n\": {}, \"health_p50_ms\": {:.2f}, "
      "\"health_p99_ms\": {:.2f}, \"health_max_ms\": {:.2f}, \"warm_mib\": {:.1f}, "
      "\"end_mib\": {:.1f}}}\n",
      a.clients, a.seconds, totals.answers, totals.busy, totals.failures,
      static_cast<double>(totals.events) / a.seconds, totals.health_ms.size(),
      quantile(totals.health_ms, 0.5), quantile(totals.health_ms, 0.99),
      quantile(totals.health_ms, 1), warm_mib, resident_mib(a.pid));
}

}  // namespace

int main(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--port") a.port = std::stoi(value);
    if (name == "--document") a.document = value;
    if (name == "--clients") a.clients = static_cast<size_t>(std::stoi(value));
    if (name == "--seconds") a.seconds = std::stoi(value);
    if (name == "--tokens") a.tokens = std::stoi(value);
    if (name == "--pid") a.pid = std::stoi(value);
  }
  run(a);
  return 0;
}
