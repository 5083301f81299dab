// torch's own pool does the work. Only a forked child needs something else: GNU OpenMP keeps its pool in
// thread-local storage, so a child inherits pointers to threads that do not exist there and waits for them
// for ever. A child therefore gets short-lived threads of its own, which cost some 20 us a call but never hang.
#include "threads.h"

#include <pthread.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <thread>
#include <vector>

namespace quantfarm::cpu {
namespace {

bool in_forked_child = false;

// Registered when the library is loaded. A fork before the load is not seen; torch's own operators would hang
// in such a child as well, unless its threads are set to 1.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { in_forked_child = true; });

void run_with_own_threads(int parts, const std::function<void(int)>& part) {
  std::vector<std::thread> helpers;
  helpers.reserve(parts - 1);
  for (int i = 1; i < parts; ++i) helpers.emplace_back([&part, i] { part(i); });
  part(0);
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace

int thread_count() { return static_cast<int>(torch::stable::get_num_threads()); }

void run_parts(int parts, const std::function<void(int)>& part) {
  if (parts <= 1) {
    if (parts == 1) part(0);
    return;
  }
  if (in_forked_child) return run_with_own_threads(parts, part);
  torch::stable::parallel_for(0, parts, 1, [&part](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) part(static_cast<int>(i));
  });
}

}  // namespace quantfarm::cpu
