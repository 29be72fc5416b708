// An MLP of experts: which rows each expert computes, and the products of all experts at once.
//
// Rows of one expert follow each other, so that its weights are read once for all of them. A row's
// experts are ordered by their weight, and their results are added in that order. So a row's
// arithmetic does not depend on other rows.
#pragma once

#include <algorithm>
#include <vector>

#include "product.h"
#include "team.h"

namespace symphony {

class Routing {
  public:
    // `normalized`: the weights of a row's experts sum to one.
    Routing(int32_t experts, int32_t chosen, bool normalized)
        : experts_(experts), chosen_(chosen), normalized_(normalized) {}

    // The most places that so many rows need.
    int32_t places_max(int32_t rows) const {
        const int32_t pairs = rows * chosen_;
        return pairs + std::min(pairs, experts_) * (TILE_ROWS - 1);
    }

    // Chooses the experts of `rows` rows of scores, [rows][stride].
    void choose(Team &team, const float *scores, int64_t stride, int32_t rows) {
        const size_t pairs = static_cast<size_t>(rows) * static_cast<size_t>(chosen_);
        numbers_.resize(pairs);
        weights_.resize(pairs);
        places_.resize(pairs);
        constexpr int32_t TASK = 16;
        team.run((rows + TASK - 1) / TASK, [&](int32_t task, int32_t) {
            const int32_t end = std::min(rows, (task + 1) * TASK);
            for (int32_t row = task * TASK; row < end; ++row) choose_row(row, scores + row * stride);
        });
        group(rows);
    }

    // The places of an expert's rows are [begin(expert), end(expert)). They begin at a tile of rows
    // (see product_quantized.h); places between experts are empty.
    int32_t begin(int32_t expert) const { return begins_[static_cast<size_t>(expert)]; }
    int32_t end(int32_t expert) const { return ends_[static_cast<size_t>(expert)]; }
    int32_t places() const { return static_cast<int32_t>(sources_.size()); }
    // The row at a place; -1: it is empty.
    int32_t source(int32_t place) const { return sources_[static_cast<size_t>(place)]; }
    // The place and the weight of a row's expert of some rank, 0 for the best.
    int32_t place(int32_t row, int32_t rank) const { return places_[at(row, rank)]; }
    float weight(int32_t row, int32_t rank) const { return weights_[at(row, rank)]; }

  private:
    size_t at(int32_t row, int32_t rank) const {
        return static_cast<size_t>(row) * static_cast<size_t>(chosen_) + static_cast<size_t>(rank);
    }

    void choose_row(int32_t row, const float *scores) {
        float *best = weights_.data() + at(row, 0);
        int32_t *numbers = numbers_.data() + at(row, 0);
        int32_t found = 0;
        for (int32_t expert = 0; expert < experts_; ++expert) {
            const float score = scores[expert];
            if (found == chosen_ && !(score > best[found - 1])) continue;
            int32_t rank = found < chosen_ ? found++ : chosen_ - 1;
            for (; rank > 0 && score > best[rank - 1]; --rank) {
                best[rank] = best[rank - 1];
                numbers[rank] = numbers[rank - 1];
            }
            best[rank] = score;
            numbers[rank] = expert;
        }
        const float top = best[0];
        float total = 0.0f;
        for (int32_t rank = 0; rank < chosen_; ++rank) best[rank] = __builtin_expf(best[rank] - top);
        if (normalized_) {
            for (int32_t rank = 0; rank < chosen_; ++rank) total += best[rank];
        } else {
            for (int32_t i = 0; i < experts_; ++i) total += __builtin_expf(scores[i] - top);
        }
        for (int32_t rank = 0; rank < chosen_; ++rank) best[rank] /= total;
    }

    // Sorts the chosen rows by expert, and by row within an expert.
    void group(int32_t rows) {
        begins_.assign(static_cast<size_t>(experts_), 0);
        for (const int32_t number : numbers_) ++begins_[static_cast<size_t>(number)];
        int32_t places = 0;
        for (int32_t &begin : begins_) {
            const int32_t count = begin;
            begin = places;
            places += static_cast<int32_t>(rounded_up(count, TILE_ROWS));
        }
        ends_ = begins_;
        sources_.assign(static_cast<size_t>(places), -1);
        for (int32_t row = 0; row < rows; ++row) {
            for (int32_t rank = 0; rank < chosen_; ++rank) {
                const size_t index = at(row, rank);
                const int32_t place = ends_[static_cast<size_t>(numbers_[index])]++;
                places_[index] = place;
                sources_[static_cast<size_t>(place)] = row;
            }
        }
    }

    const int32_t experts_, chosen_;
    const bool normalized_;
    // By row and rank.
    std::vector<int32_t> numbers_, places_;
    std::vector<float> weights_;
    std::vector<int32_t> sources_;        // by place
    std::vector<int32_t> begins_, ends_;  // by expert
};

// Multiplies the rows of each expert by its own matrix, all on the team's threads at once; see
// `multiply`. `matrix(expert)` is the expert's, `inputs` has a row for each place.
template <class T, class MatrixOf, class Out>
void multiply_routed(Team &team, const Routing &routing, int32_t experts, const MatrixOf &matrix,
                     const Inputs &inputs, Rows<char> &tiles, const Out &out) {
    struct Job {
        const Matrix *matrix;
        int32_t row, end;
        Cut cut;
        int32_t tasks_end;  // of all jobs up to this one
    };
    std::vector<Job> jobs;
    int32_t tasks = 0;
    for (int32_t expert = 0; expert < experts; ++expert) {
        const int32_t row = routing.begin(expert), end = routing.end(expert);
        if (row == end) continue;
        const Matrix &mine = matrix(expert);
        const Cut cut = cut_product(mine, end - row, team.threads());
        tasks += cut.panel_tasks * cut.row_tasks;
        jobs.push_back({&mine, row, end, cut, tasks});
    }
    tiles.reserve(inputs.rows / TILE_ROWS);
    team.run(inputs.rows / TILE_ROWS, [&](int32_t tile, int32_t) {
        const int32_t row = tile * TILE_ROWS;
        const auto job = std::upper_bound(jobs.begin(), jobs.end(), row,
                                          [](int32_t at, const Job &each) { return at < each.end; });
        if (!job->matrix->quantized()) return;
        quantize_tile<T>(*job->matrix, inputs, row, std::min(row + TILE_ROWS, job->end), tiles);
    });
    team.run(tasks, [&](int32_t task, int32_t) {
        const auto job = std::upper_bound(
            jobs.begin(), jobs.end(), task,
            [](int32_t number, const Job &each) { return number < each.tasks_end; });
        const Cut &cut = job->cut;
        const Matrix &mine = *job->matrix;
        const int32_t part = task - (job->tasks_end - cut.panel_tasks * cut.row_tasks);
        const int32_t row = job->row + part % cut.row_tasks * cut.rows;
        const int32_t row_end = std::min(row + cut.rows, job->end);
        const int32_t begin = part / cut.row_tasks * cut.panels;
        const int32_t end = std::min(begin + cut.panels, mine.count);
        for (int32_t index = begin; index < end; ++index) {
            const int32_t next = std::min(index + 1, mine.count - 1);
            if (mine.quantized()) {
                multiply_quantized_panel(mine, index, next, tiles, row, row_end, out);
            } else {
                multiply_panel<T>(mine, index, next, inputs, row, row_end, out);
            }
        }
    });
}

}  // namespace symphony
