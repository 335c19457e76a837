"""A running `pagezip serve` for the tests, on a tiny model of random weights or on a real one.

Environment: PAGEZIP_BINARY, PAGEZIP_TINY_MODEL (written by write_tiny_model), PAGEZIP_MODELS.
"""
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

import pytest

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Server:
    """One server process on a free port."""

    def __init__(self, model, *flags, env=None):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [os.environ["PAGEZIP_BINARY"], "serve", "--model", model, "--port", "0", *flags],
            stderr=self.log, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        self.scheme = "https" if "--ssl-cert-file" in flags else "http"
        self.port = self._wait_for_port()

    def _wait_for_port(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for line in self.text().splitlines():
                if "listening on" in line:
                    return int(line.rsplit(":", 1)[1])
            assert self.process.poll() is None, self.text()
            time.sleep(0.02)
        raise AssertionError("the server didn't start:\n" + self.text())

    def wait_ready(self):
        deadline = time.monotonic() + 120
        while self.request("GET", "/health").status != 200:
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.05)
        return self

    def text(self):
        with open(self.log.name, encoding="utf-8") as log:
            return log.read()

    def request(self, method, path, body=None, headers=None, timeout=60):
        """One request on a connection of its own; the reply has .status, .headers, .body, .json."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        reply.body = reply.read()
        is_json = reply.headers.get("Content-Type", "").startswith("application/json")
        reply.json = json.loads(reply.body) if is_json and reply.body else None
        connection.close()
        return reply

    def raw(self, data, *, close=False, timeout=20):
        """Sends bytes and returns all that comes back until the server closes, or stops sending."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(data)
            if close:
                s.shutdown(socket.SHUT_WR)
            received = b""
            try:
                while part := s.recv(65536):
                    received += part
            except (TimeoutError, ConnectionResetError):
                pass
            return received

    def state(self):
        return self.request("GET", "/state").json

    def wait_idle(self, seconds=20):
        """Until nothing runs; returns the blocks that are neither free nor evictable."""
        deadline = time.monotonic() + seconds
        while True:
            now = self.state()
            busy = now["running"] + now["waiting"] + now["jobs_running"] + now["jobs_waiting"]
            if busy == 0:
                blocks = now["blocks"]
                held = blocks["total"] - blocks["free"] - blocks["idle_prefix"] - blocks["documents"]
                # Idle prefixes are counted once a second.
                if held == 0 or time.monotonic() > deadline:
                    return held
            assert time.monotonic() < deadline, now
            time.sleep(0.1)

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(timeout=60)


def durable(server, path, headers=None):
    """The document once its file is written, which comes a moment after it is ready."""
    deadline = time.monotonic() + 30
    while not (got := server.request("GET", path, headers=headers)).json["residency"]["durable"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return got


def _serve(model, *flags, **options):
    return Server(model, *flags, **options).wait_ready()


@pytest.fixture(scope="session")
def tiny_model():
    return os.environ["PAGEZIP_TINY_MODEL"]


@pytest.fixture(scope="session")
def start_server():
    """A function that starts servers; they end with the tests."""
    servers = []

    def start(model, *flags, wait=True, **options):
        server = Server(model, *flags, **options)
        servers.append(server)
        return server.wait_ready() if wait else server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def tiny(start_server, tiny_model, tmp_path_factory):
    """A server on the tiny model, with short time limits, for all tests that leave it as it was."""
    return start_server(
        tiny_model, "--pool-mib", "64", "--context", "8192", "--documents", str(tmp_path_factory.mktemp("documents")),
        "--header-timeout", "1", "--body-timeout", "2", "--idle-timeout", "3",
        "--write-timeout", "2", "--max-body-mib", "1", "--no-access-log")


@pytest.fixture(scope="session")
def smollm2(start_server, tmp_path_factory):
    model = os.path.join(os.environ["PAGEZIP_MODELS"], SMOLLM2)
    return start_server(model, "--model-name", "smollm2", "--pool-mib", "1024",
                        "--documents", str(tmp_path_factory.mktemp("documents")))
