// From a step's rows to tasks of balanced cost. These decisions never change results.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_block.h"
#include "attention_pool.h"

namespace symphony {

// Some queries of one kv head, or of several, against the blocks [block_begin, block_end) of one block
// table.
struct Task {
    int32_t kv_head, kv_heads;  // the first, and how many
    int32_t first, count;  // of `members`
    int32_t table;         // where the block table begins in `rows.tables`
    int32_t block_begin, block_end;
    int32_t low, high;  // the union of the entries that the queries see, [low, high)
    int64_t partial;    // row of the partial sums for block_begin; -1: the task needs no merge
    bool joined;        // its queries' first blocks: their sums are joined, and kept as one block's
    int64_t sources;    // of a merge: where its blocks' rows are listed
    bool entering;      // first enter the only query's K and V into the pool
    float cost;
};

class Planner {
  public:
    Planner(const AttentionShape &shape, const PoolLayout &layout);

    void plan(const StepRows &step);

    // What layers of one window compute.
    struct Work {
        int32_t window;
        std::vector<Task> tasks;
        std::vector<Task> merges;
    };
    const Work &of(int32_t layer) const { return works_[size_t(work_of_[size_t(layer)])]; }

    int32_t enter_tasks() const;
    template <class Enter>
    void for_entering(int32_t task, Enter enter) const {
        const size_t begin = size_t(task) * size_t(enter_tokens_);
        const size_t end = std::min(begin + size_t(enter_tokens_), entering_.size());
        for (size_t i = begin; i < end; ++i) enter(entering_[i]);
    }

    Visible visible(int32_t token, int32_t window, int32_t begin, const Block &block) const;

    // The first row of a task's partial sums of a block.
    size_t partial(const Task &task, int32_t block) const {
        const int32_t index = task.joined ? 0 : block - task.block_begin;
        return size_t(task.partial) + size_t(index) * size_t(task.count) * size_t(shared_);
    }
    // Where a merge finds a block's partial sums; -1: joined to those of a later block.
    int64_t source(const Task &merge, int32_t block) const {
        return sources_[size_t(merge.sources + block - merge.block_begin)];
    }

    StepRows rows{};
    std::vector<int32_t> members;  // tokens, the queries of the tasks
    std::vector<int64_t> slots;    // [tokens] where K and V of each go
    std::vector<float> partial_sums;    // [rows of partial sums][width], from the first line on
    std::vector<float> partial_totals;  // [rows][2]: maximum, total
    float *sums() const;                // `partial_sums` from a line on

  private:
    // Queries with one block table, before they are cut into tasks.
    struct Span {
        int32_t first, count, table;
        int32_t block_begin, block_end, low, high;
        bool partial;   // its sums are merged with other sums
        bool entering;  // of a row of one token
    };
    // Where partial sums are merged: queries whose blocks were computed in parts.
    struct Target {
        int32_t first, count, block_begin, block_end;
        int64_t sources;  // [kv_heads][blocks]
    };

    void read_rows();
    void read_tree(int32_t row);
    void make_spans(int32_t window);
    int32_t low(int32_t token, int32_t window) const;
    const uint64_t *related(int32_t token) const;
    int32_t hidden_ancestor(int32_t token, int32_t window) const;
    void add_prefill(int32_t row, int32_t window);
    void add_decodes(int32_t window);
    void share(const int32_t *begin, const int32_t *end, int32_t block);
    void add_decode(int32_t row, int32_t block_begin, int32_t low);
    void add_group(const int32_t *begin, const int32_t *end, int32_t block_begin, int32_t block_end);
    int32_t same_blocks(int32_t one, int32_t other, int32_t block) const;
    void add_target(int32_t first, int32_t count, int32_t begin, int32_t end);
    // Where the sums of one of `members` are merged, if they are.
    const Target &target_of(int32_t member) const {
        return targets_[size_t(target_of_[size_t(members[size_t(member)])])];
    }
    int32_t part_blocks() const;
    float span_cost(const Span &span, int32_t blocks) const;
    void cut(Span &span, int32_t blocks, Work &work);
    void add_task(const Span &span, int32_t begin, int32_t end, int32_t kv_head, int32_t kv_heads,
                  Work &work);
    bool together() const;
    void note_sources(const Task &task);
    void make_merges(Work &work);
    void arrange(std::vector<Task> &tasks) const;
    int32_t length(int32_t row) const;
    const int32_t *table(int32_t row) const { return rows.tables + rows.table_offsets[row]; }

    const int shared_, kv_heads_, threads_, width_;
    const float head_cost_;
    std::vector<int32_t> work_of_;  // [layers]
    std::vector<Work> works_;

    std::vector<int32_t> high_;        // [tokens] number of entries up to the token itself
    std::vector<int32_t> path_;        // [tokens] the same without other branches of its tree
    std::vector<int32_t> tree_start_;  // [tokens] first entry of its tree; -1: no tree
    std::vector<int32_t> tree_begin_;  // [tokens] first token of its tree
    std::vector<int64_t> related_at_;  // [tokens] into `related_`
    std::vector<int32_t> tree_words_;  // [tokens] words of a token of `related_`
    std::vector<uint64_t> related_;    // bits: whether a tree's token is an ancestor or itself
    std::vector<int32_t> entering_;    // tokens that `enter` takes
    int32_t enter_tokens_ = 1;         // of one task

    // Of the window that is being planned.
    std::vector<int32_t> decodes_;    // rows of one token
    std::vector<int32_t> target_of_;  // [tokens] of those whose sums are merged; -1: none
    std::vector<Span> spans_;
    std::vector<Target> targets_;
    // Of all windows.
    std::vector<int64_t> sources_;
    bool together_ = false;  // all kv heads of a decoding row in one task
    int64_t partial_rows_ = 0;
};

}  // namespace symphony
