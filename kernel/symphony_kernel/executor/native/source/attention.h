// Attention on the pages: everything between the product of QKV and the input of the output
// projection.
//
// A step computes the layers one after the other. In each layer, each stage is a number of tasks,
// which any threads compute in any order. A stage begins when the stage before has ended:
//
//     enter_tasks()          enter:  K (normed, rotated) and V of new tokens into the pool; none in a
//                                    step of single tokens, where attend does this
//     attend_tasks(layer)    attend: the weighted sums, over all or some of the entries
//     merge_tasks(layer)     merge:  of queries whose entries were split; often none
//
// A query's result is a function of its own entries only, to the last bit. Entries are summed up in
// blocks of BLOCK_TOKENS that begin at multiples of it, each block separately, and blocks are
// merged in order. The arithmetic does not depend on how tasks are cut, which rows are in the step,
// the chunks of a prompt, or the number of threads.
//
// The pool is [layers][pages][kv_heads] of one head's page: K, then V, in units of 4 bytes, each a
// pair of bfloat16 or one float32:
//
//     K  [head_dim / per_unit][16 tokens]         16 keys are the lanes of one register
//     V  [16 / per_unit][head_dim padded to 16]   16 dimensions are the lanes of one register
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace symphony {

constexpr int PAGE_TOKENS = 16;
constexpr int BLOCK_TOKENS = 256;

// What attention needs to know of the model and its pool. `element_bytes`, 2 (bfloat16) or 4
// (float32), is that of the pool, the rotated queries, and the output. QKV is float32.
struct AttentionShape {
    int32_t layers;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;  // even
    int32_t element_bytes;
    int32_t threads;       // of the team: `thread` below is less than this
    // Whether bfloat16 is multiplied as float32, for processors without bfloat16 products. The
    // output is float32 then.
    int32_t wide;
    int64_t pages;         // of the pool
    const int32_t *windows;  // [layers] entries that a token sees, itself included; 0: all
    float norm_epsilon;      // of the norms of q and k
    float score_scale;       // of products of queries and keys; 0: one over the root of head_dim
    float score_cap;         // scores become cap tanh(score / cap); 0: they stay
};

// ---- The pool --------------------------------------------------------------------------------

// Bytes of the whole pool.
size_t pool_bytes(const AttentionShape &shape);

// Allocates zeroed memory for the pool, untouched until its first use; frees it. Null: no memory.
void *pool_allocate(size_t bytes);
void pool_free(void *pool, size_t bytes);

// Copies `count` slots of one layer; all reads come before all writes; destinations are distinct.
void pool_copy(const AttentionShape &shape, void *pool, int32_t layer, const int64_t *sources,
               const int64_t *destinations, int64_t count);

// Copies `count` whole pages from frames of the pool to slots of host memory or back. In host
// memory a page's layers follow each other, each in the pool's format.
void pool_save(const AttentionShape &shape, const void *pool, const int32_t *frames,
               const int32_t *slots, int64_t count, void *host);
void pool_load(const AttentionShape &shape, void *pool, const int32_t *frames, const int32_t *slots,
               int64_t count, const void *host);

// Fills pages with NaN in every layer.
void pool_poison(const AttentionShape &shape, void *pool, const int32_t *pages, int64_t count);

// Converts between slots of one layer and plain [count][2][kv_heads][head_dim] elements.
void pool_read(const AttentionShape &shape, const void *pool, int32_t layer, const int64_t *slots,
               int64_t count, void *plain);
void pool_write(const AttentionShape &shape, void *pool, int32_t layer, const int64_t *slots,
                int64_t count, const void *plain);

// ---- A step ----------------------------------------------------------------------------------

// The rows of a step, flat. Tokens are in the order of the rows. Arrays must live as long as the
// step. `base.Row` says what a row means.
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

// One layer's arrays, as input of a stage.
struct AttentionLayer {
    int32_t layer;
    const float *qkv;      // [tokens][qkv_stride]: heads, then kv_heads of K, then of V
    int64_t qkv_stride;    // in floats
    void *out;             // [tokens][out_stride] of heads * head_dim elements
    int64_t out_stride;    // in elements
    const float *q_norm;   // [head_dim] or null
    const float *k_norm;   // [head_dim] or null
    const float *cosines;  // [positions of the model][head_dim / 2], scaled for the model
    const float *sines;    // the same
    const float *sinks;    // [heads] scores that no entry has, which take weight; or null
};

// The plan of steps, and the memory of their stages. One is made for an executor and planned again
// for each step; its memory only grows. Not for two steps at once.
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

    // Tasks are in falling order of cost: take them from a common counter. `thread` selects the
    // memory that the task uses; two threads must not pass the same number at the same time.
    void enter(const AttentionLayer &layer, int32_t task, int32_t thread);
    void attend(const AttentionLayer &layer, int32_t task, int32_t thread);
    void merge(const AttentionLayer &layer, int32_t task, int32_t thread);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace symphony
