#include "exports.h"

#include <cstdint>

SYMPHONY_EXPORT int32_t symphony_computes_bf16() {
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}
