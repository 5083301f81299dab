// The product as a whole: phases of one call, independent of torch's types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.h"

namespace quantfarm::int4_panel {

// Fills p.out for `rows` rows of x (type p.out_type). Throws when no instruction set of this build runs here.
void multiply(const Problem& p, const void* x, int64_t rows);

// Calls in which the level computed at least one row; level 0: all calls.
int64_t call_count(int isa);

// Asks for 2 MB pages under a large buffer that is about to be written: a 4 KB page ends the hardware
// prefetcher's stream and costs an address translation. Only a hint; failure is not an error.
void advise_huge_pages(void* begin, std::size_t bytes);

}  // namespace quantfarm::int4_panel
