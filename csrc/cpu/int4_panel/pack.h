// Moving codes between the canonical words and the panel layout; exact in both directions.
#pragma once

#include <cstdint>

namespace quantfarm::int4_panel {

// Both take one panel, so that the caller can spread panels over threads. `perm` is [k] or null.
void pack_panel(const uint32_t* canonical, const int32_t* perm, int64_t k, int64_t n, int64_t panel,
                uint32_t* packed);
void unpack_panel(const uint32_t* packed, const int32_t* perm, int64_t k, int64_t n, int64_t panel,
                  uint32_t* canonical);

}  // namespace quantfarm::int4_panel
