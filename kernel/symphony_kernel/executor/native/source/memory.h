// Memory of the kernels.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "types.h"

namespace symphony {

// Zeroed memory, in huge pages if the system has them: address translation for hundreds of
// megabytes of weights is faster with few pages.
class Mapped {
  public:
    explicit Mapped(size_t bytes) : bytes_(static_cast<size_t>(rounded_up(bytes, HUGE_BYTES))) {
        memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory_ == MAP_FAILED) throw std::bad_alloc();
        madvise(memory_, bytes_, MADV_HUGEPAGE);  // without huge pages small ones will do
    }
    ~Mapped() { munmap(memory_, bytes_); }
    Mapped(const Mapped &) = delete;
    Mapped &operator=(const Mapped &) = delete;

    char *data() const { return static_cast<char *>(memory_); }

  private:
    static constexpr int64_t HUGE_BYTES = 2 << 20;
    void *memory_;
    size_t bytes_;
};

// Rows of numbers that each step overwrites. Rows begin at cache lines, but not at multiples of a
// page, which would share a few cache sets. Numbers past a row's end are zero unless the owner
// writes there.
template <class E>
class Rows {
  public:
    explicit Rows(int64_t width) : stride_(rounded_up(width, LINE_ELEMENTS) + LINE_ELEMENTS) {}

    // Makes room for `rows` rows; their contents are lost when it grows.
    void reserve(int32_t rows) {
        if (rows <= rows_) return;
        const int64_t wanted = rounded_up(rows, 16);
        const size_t bytes = static_cast<size_t>(wanted * stride_) * sizeof(E);
        rows_ = 0;
        memory_.reset(static_cast<E *>(std::aligned_alloc(LINE_BYTES, bytes)));
        if (!memory_) throw std::bad_alloc();
        std::memset(memory_.get(), 0, bytes);
        rows_ = static_cast<int32_t>(wanted);
    }
    E *row(int64_t index) const { return memory_.get() + index * stride_; }
    int64_t stride() const { return stride_; }  // in elements

  private:
    static constexpr int64_t LINE_ELEMENTS = 2 * LINE_BYTES / sizeof(E);
    struct Free {
        void operator()(E *memory) const { std::free(memory); }
    };
    std::unique_ptr<E, Free> memory_;
    int64_t stride_;
    int32_t rows_ = 0;
};

}  // namespace symphony
