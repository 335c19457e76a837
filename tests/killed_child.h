// A process that is killed while it works.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <thread>
#include <vector>

namespace pagezip {

/// Runs live(pipe) in a child, which never returns from it and tells what it does in notes: these
/// outlive it. It is killed `moment` after that many of them, so that it comes equally far on slow
/// machines. Returns all that it told.
template <typename Note, typename Live>
std::vector<Note> notes_of_killed_child(size_t notes, std::chrono::microseconds moment,
                                        const Live& live) {
  std::vector<Note> told;
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    close(ends[0]);
    live(ends[1]);
  }
  close(ends[1]);
  const auto read_note = [&] {
    Note note;
    const bool there = read(ends[0], &note, sizeof(note)) == sizeof(note);
    if (there) told.push_back(note);
    return there;
  };
  while (told.size() < notes && read_note()) {
  }
  std::this_thread::sleep_for(moment);
  kill(child, SIGKILL);
  while (read_note()) {
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  return told;
}

}  // namespace pagezip
