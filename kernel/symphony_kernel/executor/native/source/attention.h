// Attention straight on the pages: everything between the product of QKV and the input of the
// output projection.
//
// A step goes through the layers one after the other. Per layer, each stage is a number of tasks
// that any threads compute in any order; a stage begins when the one before has ended:
//
//     enter_tasks()          enter:  K (normed, rotated) and V of new tokens into the pool; none in a
//                                    step of single tokens, which attend takes along
//     attend_tasks(layer)    attend: the weighted sums, whole or over a part of the entries
//     merge_tasks(layer)     merge:  of queries whose entries were split; often none
//
// A query's result is a function of its own entries alone, to the last bit: entries are summed up in
// blocks of BLOCK_TOKENS that begin at multiples of it, each block by itself, and blocks are merged
// in their order. How tasks are cut, which rows are in the step, in which chunks a prompt came and
// how many threads there are is nowhere in the arithmetic.
//
// The pool is [layers][pages][kv_heads] of one head's page: K, then V, in units of 4 bytes, which are
// a pair of bfloat16 or one float32:
//
//     K  [head_dim / per_unit][16 tokens]         so that 16 keys are the lanes of one register
//     V  [16 / per_unit][head_dim padded to 16]   so that 16 dimensions are
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace symphony {

constexpr int PAGE_TOKENS = 16;
constexpr int BLOCK_TOKENS = 256;

// What attention needs to know of the model and its pool. `element_bytes` is 2 (bfloat16) or 4
// (float32): of the pool, of the rotated queries, and of the output. QKV comes in float32.
struct AttentionShape {
    int32_t layers;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;  // even
    int32_t element_bytes;
    int32_t threads;       // of the team: `thread` below is less than this
    // Whether bfloat16 is multiplied as float32, as it is where the processor has no products of it:
    // the output is float32 then.
    int32_t wide;
    int64_t pages;         // of the pool
    const int32_t *windows;  // [layers] entries that a token sees, itself included; 0: all
    float norm_epsilon;      // of the norms of q and k
};

// ---- The pool --------------------------------------------------------------------------------

// Bytes of the whole pool.
size_t pool_bytes(const AttentionShape &shape);

// Zeroed memory for it that is not touched before it is used, and its end. Null when there is none.
void *pool_allocate(size_t bytes);
void pool_free(void *pool, size_t bytes);

// Copies `count` slots of one layer; all reads come before all writes; destinations are distinct.
void pool_copy(const AttentionShape &shape, void *pool, int32_t layer, const int64_t *sources,
               const int64_t *destinations, int64_t count);

// Copies whole pages, `count` of them, from frames of the pool to slots of host memory or back. In
// host memory a page's layers lie one behind the other, each as it lies in the pool.
void pool_save(const AttentionShape &shape, const void *pool, const int32_t *frames,
               const int32_t *slots, int64_t count, void *host);
void pool_load(const AttentionShape &shape, void *pool, const int32_t *frames, const int32_t *slots,
               int64_t count, const void *host);

// Fills pages with NaN in every layer.
void pool_poison(const AttentionShape &shape, void *pool, const int32_t *pages, int64_t count);

// Between slots of one layer and plain [count][2][kv_heads][head_dim] elements.
void pool_read(const AttentionShape &shape, const void *pool, int32_t layer, const int64_t *slots,
               int64_t count, void *plain);
void pool_write(const AttentionShape &shape, void *pool, int32_t layer, const int64_t *slots,
                int64_t count, const void *plain);

// ---- A step ----------------------------------------------------------------------------------

// The rows of a step, flat. Tokens stand in the order of the rows. Arrays must live as long as the
// step. See `base.Row` for what a row means.
struct StepRows {
    int32_t rows;
    int32_t tokens;                // of all rows
    const int32_t *offsets;        // [rows + 1] of a row's first token
    const int32_t *starts;         // [rows] entries present before
    const int32_t *table_offsets;  // [rows + 1] into `tables`
    const int32_t *tables;         // pages of the rows, one after the other
    const int32_t *positions;      // [tokens]
    const int32_t *parents;        // [tokens], only read for rows in `trees`; may be null
    const uint8_t *trees;          // [rows] whether a row has parents; null: none has
};

// What of a layer a stage works on.
struct AttentionLayer {
    int32_t layer;
    const float *qkv;      // [tokens][qkv_stride]: heads, then kv_heads of K, then of V
    int64_t qkv_stride;    // in floats
    void *out;             // [tokens][out_stride] of heads * head_dim elements
    int64_t out_stride;    // in elements
    const float *q_norm;   // [head_dim] or null
    const float *k_norm;   // [head_dim] or null
    const float *cosines;  // [positions of the model][head_dim / 2], scaled as the model wants them
    const float *sines;    // the same
};

// The plan of steps, and the memory that their stages need. One is made for an executor and planned
// anew for each step; it only grows. Not for two steps at once.
class Attention {
  public:
    Attention(const AttentionShape &shape, void *pool);
    ~Attention();
    Attention(const Attention &) = delete;
    Attention &operator=(const Attention &) = delete;

    // Prepares a step. Calls of the stages refer to the last one.
    void plan(const StepRows &rows);

    int32_t enter_tasks() const;
    int32_t attend_tasks(int32_t layer) const;
    int32_t merge_tasks(int32_t layer) const;

    // Tasks come in falling order of cost: take them from a common counter. `thread` names the
    // memory that the task may use; no two threads at a time may give the same.
    void enter(const AttentionLayer &layer, int32_t task, int32_t thread);
    void attend(const AttentionLayer &layer, int32_t task, int32_t thread);
    void merge(const AttentionLayer &layer, int32_t task, int32_t thread);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace symphony
