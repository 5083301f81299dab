// Splitting a range over torch's threads, also inside a forked child.
#pragma once

#include <cstdint>
#include <functional>

namespace quantfarm::cpu {

// Number of parts that run_parts can use now: torch.get_num_threads().
int thread_count();

// Calls part(i) for i in [0, parts), at most thread_count() of them at a time. Parts must not throw.
// Safe from several Python threads at once and inside another parallel region (then it runs inline).
void run_parts(int parts, const std::function<void(int)>& part);

}  // namespace quantfarm::cpu
