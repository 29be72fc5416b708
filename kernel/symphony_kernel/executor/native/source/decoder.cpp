#include "decoder.h"

#include <chrono>

namespace symphony {

namespace {

constexpr int32_t NORM_TASK_ELEMENTS = 1 << 13;

__m512 silu(__m512 x) {
    const __m512 falling = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-1.44269504f));
    const __m512 e = exp2_negative<6>(falling);
    const __m512 one = _mm512_set1_ps(1.0f);
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 over = _mm512_mask_mov_ps(one, negative, e);
    return _mm512_mul_ps(x, _mm512_div_ps(over, _mm512_add_ps(one, e)));
}

struct Layer {
    Matrix qkv, output, gate_up, down;
    const float *input_norm, *query_norm, *key_norm, *middle_norm;
};

// The weights: where each tensor goes, and the memory of all tensors.
template <class T>
class Weights {
  public:
    explicit Weights(const DecoderShape &shape)
        : shape_(shape), layers_(static_cast<size_t>(shape.layers)) {
        size_t bytes = 0;
        for (Layer &layer : layers_) {
            bytes += place(layer.qkv, (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
                           shape.hidden);
            bytes += place(layer.output, shape.hidden, shape.heads * shape.head_dim);
            bytes += place(layer.gate_up, 2 * gate_width(), shape.hidden);
            bytes += place(layer.down, shape.hidden, shape.middle);
            if (shape.qkv_bias) layer.qkv.bias = zeros(layer.qkv.count * PANEL);
            if (shape.output_bias) layer.output.bias = zeros(layer.output.count * PANEL);
            if (shape.mlp_bias) {
                layer.gate_up.bias = zeros(layer.gate_up.count * PANEL);
                layer.down.bias = zeros(layer.down.count * PANEL);
            }
            layer.input_norm = zeros(shape.hidden);
            layer.middle_norm = zeros(shape.hidden);
            layer.query_norm = shape.qk_norm ? zeros(shape.head_dim) : nullptr;
            layer.key_norm = shape.qk_norm ? zeros(shape.head_dim) : nullptr;
        }
        bytes += place(head_, shape.vocab, shape.hidden);
        memory_ = std::make_unique<Mapped>(bytes);
        free_ = memory_->data();
        last_norm_ = zeros(shape.hidden);
    }

    const Layer &layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
    const Matrix &head() const { return head_; }
    const float *last_norm() const { return last_norm_; }

    void set_matrix(Team &team, Part part, int32_t layer, const void *values) {
        Matrix &matrix = of(part, layer);
        if (!matrix.panels) {
            matrix.panels = reinterpret_cast<uint32_t *>(take(matrix, plain_bytes(matrix)));
        }
        const size_t row_bytes = static_cast<size_t>(matrix.depth) * sizeof(typename T::Element);
        for_rows(team, part, [&](int32_t first, int32_t rows) {
            pack(matrix, static_cast<const char *>(values) + row_bytes * first, rows, matrix.depth,
                 sizeof(typename T::Element),
                 [&](int32_t row) { return place_of(part, first + row); });
        });
    }

    void set_quantized(Team &team, Part part, int32_t layer, const QuantizedRows &values) {
        Matrix &matrix = of(part, layer);
        if (!matrix.quantized_panels) {
            matrix.format = values.format;
            matrix.quantized_panels = take(matrix, values.format.panel_bytes(matrix.depth));
        }
        for_rows(team, part, [&](int32_t first, int32_t rows) {
            for (int32_t row = first; row < first + rows; ++row) {
                pack_quantized(values, row, matrix.depth, matrix.quantized_panels,
                               place_of(part, row));
            }
        });
    }

    void set_bias(Part part, int32_t layer, const float *values) {
        auto *bias = const_cast<float *>(of(part, layer).bias);
        for (int32_t i = 0; i < outputs_of(part); ++i) bias[place_of(part, i)] = values[i];
    }

    void set_norm(Part part, int32_t layer, const float *values) {
        const float *to = last_norm_;
        int32_t size = shape_.hidden;
        if (part == Part::INPUT_NORM) to = this->layer(layer).input_norm;
        if (part == Part::MIDDLE_NORM) to = this->layer(layer).middle_norm;
        if (part == Part::QUERY_NORM) to = this->layer(layer).query_norm;
        if (part == Part::KEY_NORM) to = this->layer(layer).key_norm;
        if (part == Part::QUERY_NORM || part == Part::KEY_NORM) size = shape_.head_dim;
        std::memcpy(const_cast<float *>(to), values, static_cast<size_t>(size) * sizeof(float));
    }

  private:
    // A panel of the fused matrix holds 16 outputs of gate and the same 16 of up.
    int32_t gate_width() const { return static_cast<int32_t>(rounded_up(shape_.middle, LANES)); }

    // The bytes of a panel in the model's type.
    static size_t plain_bytes(const Matrix &matrix) {
        return matrix.panel_units() * sizeof(uint32_t);
    }

    // Sets a matrix's shape; returns the most bytes that it can take.
    static size_t place(Matrix &matrix, int32_t outputs, int32_t depth) {
        matrix = Matrix{};
        matrix.count = static_cast<int32_t>(rounded_up(outputs, PANEL) / PANEL);
        matrix.units = (depth + T::PER_UNIT - 1) / T::PER_UNIT;
        matrix.depth = depth;
        const auto quantized = static_cast<size_t>(
            std::max(QuantizedFormat{8, BLOCK, 0}.panel_bytes(depth),
                     QuantizedFormat{4, BLOCK, 1}.panel_bytes(depth)));
        return std::max(quantized, plain_bytes(matrix)) * static_cast<size_t>(matrix.count);
    }

    // Takes memory for a matrix once its format is known.
    char *take(const Matrix &matrix, size_t panel_bytes) {
        char *taken = free_;
        free_ += panel_bytes * static_cast<size_t>(matrix.count);
        return taken;
    }

    // Calls work(first, rows) for all outputs of a part, on the team's threads.
    template <class Work>
    void for_rows(Team &team, Part part, const Work &work) {
        constexpr int32_t TASK = 8 * LANES;
        const int32_t outputs = outputs_of(part);
        const Awake awake(team);
        team.run((outputs + TASK - 1) / TASK, [&](int32_t task, int32_t) {
            work(task * TASK, std::min(TASK, outputs - task * TASK));
        });
    }

    const float *zeros(int32_t count) {
        vectors_.emplace_back(static_cast<size_t>(rounded_up(count, PANEL)), 0.0f);
        return vectors_.back().data();
    }

    Matrix &of(Part part, int32_t index) {
        if (part == Part::HEAD) return head_;
        Layer &layer = layers_[static_cast<size_t>(index)];
        if (part == Part::OUTPUT) return layer.output;
        if (part == Part::DOWN) return layer.down;
        return part == Part::GATE || part == Part::UP ? layer.gate_up : layer.qkv;
    }

    int32_t outputs_of(Part part) const {
        if (part == Part::HEAD) return shape_.vocab;
        if (part == Part::QUERY) return shape_.heads * shape_.head_dim;
        if (part == Part::KEY || part == Part::VALUE) return shape_.kv_heads * shape_.head_dim;
        return part == Part::GATE || part == Part::UP ? shape_.middle : shape_.hidden;
    }

    int32_t place_of(Part part, int32_t output) const {
        const int32_t width = shape_.head_dim;
        if (part == Part::KEY) return shape_.heads * width + output;
        if (part == Part::VALUE) return (shape_.heads + shape_.kv_heads) * width + output;
        if (part == Part::GATE) return output / LANES * PANEL + output % LANES;
        if (part == Part::UP) return output / LANES * PANEL + LANES + output % LANES;
        return output;
    }

    DecoderShape shape_;
    std::vector<Layer> layers_;
    Matrix head_{};
    const float *last_norm_ = nullptr;
    std::vector<std::vector<float>> vectors_;  // their data does not move
    std::unique_ptr<Mapped> memory_;  // address space for any format; pages come with the weights
    char *free_ = nullptr;            // the rest of it
};

// Adds up the time between marks.
class Stopwatch {
  public:
    explicit Stopwatch(double *seconds) : seconds_(seconds), last_(now()) {}
    void mark(Phase phase) {
        if (!seconds_) return;
        const auto time = now();
        seconds_[static_cast<int>(phase)] += std::chrono::duration<double>(time - last_).count();
        last_ = time;
    }

  private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point now() const { return seconds_ ? Clock::now() : Clock::time_point(); }
    double *seconds_;
    Clock::time_point last_;
};

// Numbers in the model's type are stored through T; see attention_units.h.
template <class T>
class TypedDecoder : public Decoder {
  public:
    using Element = typename T::Element;
    using Factors = typename T::Factors;
    using Factor = typename Factors::Element;

    TypedDecoder(const DecoderShape &shape, void *pool)
        : shape_(shape),
          team_(shape.threads),
          attention_(shape, pool),
          pages_(shape.pages),
          weights_(shape),
          stream_(rounded_up(shape.hidden, PANEL)),
          chosen_(rounded_up(shape.hidden, PANEL)),
          normed_(shape.hidden),
          qkv_(rounded_up((shape.heads + 2 * shape.kv_heads) * shape.head_dim, PANEL)),
          mixed_(shape.heads * shape.head_dim),
          chosen_mixed_(shape.heads * shape.head_dim),
          middle_(shape.middle),
          last_(shape.hidden),
          tiles_(tile_bytes(std::max({shape.hidden, shape.middle, shape.heads * shape.head_dim}))) {
    }

    void set_matrix(Part part, int32_t layer, const void *values) override {
        weights_.set_matrix(team_, part, layer, values);
    }
    void set_quantized(Part part, int32_t layer, const QuantizedRows &values) override {
        weights_.set_quantized(team_, part, layer, values);
    }
    void set_bias(Part part, int32_t layer, const float *values) override {
        weights_.set_bias(part, layer, values);
    }
    void set_norm(Part part, int32_t layer, const float *values) override {
        weights_.set_norm(part, layer, values);
    }
    void set_embedding(const void *values) override {
        embedding_ = static_cast<const Element *>(values);
    }
    void set_rotation(const float *cosines, const float *sines, int32_t positions) override {
        cosines_ = cosines;
        sines_ = sines;
        positions_ = positions;
    }
    void set_profile(double *seconds) override { profile_ = seconds; }
    Team &team() override { return team_; }

    Fault check(const StepRows &rows, const StepTokens &tokens) const override {
        for (int32_t i = 0; i < rows.table_offsets[rows.rows]; ++i) {
            if (rows.tables[i] < 0 || rows.tables[i] >= pages_) return Fault::PAGE;
        }
        for (int32_t i = 0; i < rows.tokens; ++i) {
            if (tokens.tokens[i] >= static_cast<uint32_t>(shape_.vocab)) return Fault::TOKEN;
            if (rows.positions[i] < 0 || rows.positions[i] >= positions_) return Fault::POSITION;
        }
        return Fault::NONE;
    }

    Fault step(const StepRows &rows, const StepTokens &tokens, float *logits, int32_t count,
               const StepAnswers &answers) override {
        Stopwatch watch(profile_);
        reserve(rows.tokens, tokens.wanted_count);
        team_.lend(answers.allowed);
        const Awake awake(team_);
        attention_.plan(rows);
        plan_adapters(rows, tokens);
        embed(tokens.tokens, rows.tokens);
        watch.mark(Phase::PLAN);
        for (int32_t layer = 0; layer < shape_.layers; ++layer) {
            attend(layer, rows.tokens, watch);
            if (layer + 1 < shape_.layers) {
                transform(layer, stream_, mixed_, adapted_, rows.tokens, watch);
            }
        }
        // The second half of the last layer computes the wanted tokens only.
        choose(tokens);
        watch.mark(Phase::PLAN);
        transform(shape_.layers - 1, chosen_, chosen_mixed_, chosen_adapted_, tokens.wanted_count,
                  watch);
        norm(chosen_, weights_.last_norm(), tokens.wanted_count, last_);
        watch.mark(Phase::NORM);
        project(0, count, logits);
        watch.mark(Phase::HEAD);
        if (answers.count) {
            if (answers.allowed && !comes_soon(answers.allowed)) return Fault::UNANSWERED;
            answers.sampler->answer(&team_, answers.places, answers.count, logits);
        }
        watch.mark(Phase::ANSWERS);
        return Fault::NONE;
    }

    void logits(int32_t first, int32_t count, float *logits) override {
        Stopwatch watch(profile_);
        const Awake awake(team_);
        project(first, count, logits);
        watch.mark(Phase::HEAD);
    }

    void hidden(int32_t first, int32_t count, float *values) override {
        for (int32_t row = 0; row < count; ++row) {
            const Factor *from = last_.row(first + row);
            float *to = values + static_cast<size_t>(row) * shape_.hidden;
            for (int32_t i = 0; i < shape_.hidden; i += LANES) {
                const __mmask16 lanes = first_lanes(shape_.hidden - i);
                store(to + i, load(from + i, lanes), lanes);
            }
        }
    }

  private:
    void reserve(int32_t tokens, int32_t wanted) {
        stream_.reserve(tokens);
        normed_.reserve(std::max(tokens, wanted));
        qkv_.reserve(tokens);
        mixed_.reserve(tokens);
        middle_.reserve(std::max(tokens, wanted));
        chosen_.reserve(wanted);
        chosen_mixed_.reserve(wanted);
        last_.reserve(wanted);
    }

    static Inputs inputs(const Rows<Factor> &from, int32_t first, int32_t rows) {
        return Inputs{from.row(first), from.stride() * T::WORDS / T::PER_UNIT, rows};
    }

    void plan_adapters(const StepRows &rows, const StepTokens &tokens) {
        adapted_.clear();
        chosen_adapted_.clear();
        if (!tokens.adapters) return;
        adapters_.clear();
        for (int32_t row = 0; row < rows.rows; ++row) {
            const int32_t count = rows.offsets[row + 1] - rows.offsets[row];
            adapters_.insert(adapters_.end(), count, tokens.adapters[row]);
        }
        adapted_.plan(rows.tokens, [&](int32_t token) { return adapters_[token]; });
        chosen_adapted_.plan(tokens.wanted_count,
                             [&](int32_t index) { return adapters_[tokens.wanted[index]]; });
    }

    void embed(const uint32_t *tokens, int32_t count) {
        for (int32_t row = 0; row < count; ++row) {
            const Element *from = embedding_ + static_cast<size_t>(tokens[row]) * shape_.hidden;
            float *to = stream_.row(row);
            for (int32_t i = 0; i < shape_.hidden; i += LANES) {
                store(to + i, load(from + i, first_lanes(shape_.hidden - i)));
            }
        }
    }

    void norm(const Rows<float> &from, const float *weight, int32_t rows, const Rows<Factor> &to) {
        const int32_t task_rows = std::max(1, NORM_TASK_ELEMENTS / shape_.hidden);
        team_.run((rows + task_rows - 1) / task_rows, [&](int32_t task, int32_t) {
            const int32_t end = std::min(rows, (task + 1) * task_rows);
            for (int32_t row = task * task_rows; row < end; ++row) {
                norm_row(from.row(row), weight, to.row(row));
            }
        });
    }

    void norm_row(const float *from, const float *weight, Factor *to) const {
        __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int32_t i = 0; i < shape_.hidden; i += PANEL) {  // zeros past the end
            const __m512 x = load(from + i), y = load(from + i + LANES);
            sums[0] = _mm512_fmadd_ps(x, x, sums[0]);
            sums[1] = _mm512_fmadd_ps(y, y, sums[1]);
        }
        const float sum = _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1]));
        const float mean = sum / static_cast<float>(shape_.hidden) + shape_.norm_epsilon;
        const __m512 scale = _mm512_set1_ps(1.0f / __builtin_sqrtf(mean));
        for (int32_t i = 0; i < shape_.hidden; i += LANES) {
            const __m512 x = _mm512_mul_ps(load(from + i), scale);
            Factors::store(to + i, _mm512_mul_ps(x, load(weight + i)),
                           first_lanes(shape_.hidden - i));
        }
    }

    // From the residual stream to the output of attention.
    void attend(int32_t index, int32_t rows, Stopwatch &watch) {
        const Layer &layer = weights_.layer(index);
        norm(stream_, layer.input_norm, rows, normed_);
        watch.mark(Phase::NORM);
        adapted_.shrink(team_, index, AdapterPart::QKV, layer.qkv, inputs(normed_, 0, rows));
        multiply<T>(team_, layer.qkv, inputs(normed_, 0, rows), tiles_,
                    [&](int32_t row, int32_t panel, __m512 left, __m512 right) {
                        adapted_.expand(row, panel, left, right);
                        float *to = qkv_.row(row) + panel * PANEL;
                        store(to, left);
                        store(to + LANES, right);
                    });
        watch.mark(Phase::QKV);
        const AttentionLayer work{index,           qkv_.row(0),      qkv_.stride(),
                                  mixed_.row(0),   mixed_.stride(),  layer.query_norm,
                                  layer.key_norm,  cosines_,         sines_};
        team_.run(attention_.enter_tasks(),
                  [&](int32_t task, int32_t thread) { attention_.enter(work, task, thread); });
        team_.run(attention_.attend_tasks(index),
                  [&](int32_t task, int32_t thread) { attention_.attend(work, task, thread); });
        team_.run(attention_.merge_tasks(index),
                  [&](int32_t task, int32_t thread) { attention_.merge(work, task, thread); });
        watch.mark(Phase::ATTENTION);
    }

    // The rest of a layer, on rows of the stream and of attention's output.
    void transform(int32_t index, const Rows<float> &stream, const Rows<Factor> &mixed,
                   AdaptedRows<Factors> &adapted, int32_t rows, Stopwatch &watch) {
        const Layer &layer = weights_.layer(index);
        const auto add = [&](int32_t row, int32_t panel, __m512 left, __m512 right) {
            adapted.expand(row, panel, left, right);
            float *to = stream.row(row) + panel * PANEL;
            store(to, _mm512_add_ps(load(to), left));
            store(to + LANES, _mm512_add_ps(load(to + LANES), right));
        };
        adapted.shrink(team_, index, AdapterPart::OUTPUT, layer.output, inputs(mixed, 0, rows));
        multiply<T>(team_, layer.output, inputs(mixed, 0, rows), tiles_, add);
        watch.mark(Phase::OUTPUT);
        norm(stream, layer.middle_norm, rows, normed_);
        watch.mark(Phase::NORM);
        adapted.shrink(team_, index, AdapterPart::GATE_UP, layer.gate_up, inputs(normed_, 0, rows));
        multiply<T>(team_, layer.gate_up, inputs(normed_, 0, rows), tiles_,
                    [&](int32_t row, int32_t panel, __m512 gate, __m512 up) {
                        adapted.expand(row, panel, gate, up);
                        Factors::store(middle_.row(row) + panel * LANES,
                                       _mm512_mul_ps(silu(gate), up), 0xFFFF);
                    });
        watch.mark(Phase::GATE_UP);
        adapted.shrink(team_, index, AdapterPart::DOWN, layer.down, inputs(middle_, 0, rows));
        multiply<T>(team_, layer.down, inputs(middle_, 0, rows), tiles_, add);
        watch.mark(Phase::DOWN);
    }

    void choose(const StepTokens &tokens) {
        const size_t stream_bytes = static_cast<size_t>(shape_.hidden) * sizeof(float);
        const size_t mixed_bytes =
            static_cast<size_t>(shape_.heads) * shape_.head_dim * sizeof(Factor);
        for (int32_t i = 0; i < tokens.wanted_count; ++i) {
            std::memcpy(chosen_.row(i), stream_.row(tokens.wanted[i]), stream_bytes);
            std::memcpy(chosen_mixed_.row(i), mixed_.row(tokens.wanted[i]), mixed_bytes);
        }
    }

    void project(int32_t first, int32_t count, float *logits) {
        const int32_t vocab = shape_.vocab;
        multiply<T>(team_, weights_.head(), inputs(last_, first, count), tiles_,
                    [&](int32_t row, int32_t panel, __m512 left, __m512 right) {
                        const int32_t at = panel * PANEL;
                        float *to = logits + static_cast<size_t>(row) * vocab + at;
                        store(to, left, first_lanes(vocab - at));
                        if (vocab - at > LANES) {
                            store(to + LANES, right, first_lanes(vocab - at - LANES));
                        }
                    });
    }

    DecoderShape shape_;
    Team team_;
    Attention attention_;
    int64_t pages_;  // of the pool
    Weights<T> weights_;
    const Element *embedding_ = nullptr;
    const float *cosines_ = nullptr, *sines_ = nullptr;
    int32_t positions_ = 0;  // number of positions with a rotation
    double *profile_ = nullptr;
    // By token of the step, and by wanted token.
    Rows<float> stream_, chosen_;
    Rows<Factor> normed_;
    Rows<float> qkv_;
    Rows<Factor> mixed_, chosen_mixed_;
    Rows<Factor> middle_;
    Rows<Factor> last_;
    Rows<char> tiles_;  // a product's inputs, quantized
    std::vector<const AdapterTable *> adapters_;  // by token of the step
    AdaptedRows<Factors> adapted_, chosen_adapted_;
};

}  // namespace

std::unique_ptr<Decoder> Decoder::make(const DecoderShape &shape, void *pool) {
    return with_units(shape.element_bytes, shape.wide, [&](auto units) -> std::unique_ptr<Decoder> {
        return std::make_unique<TypedDecoder<decltype(units)>>(shape, pool);
    });
}

}  // namespace symphony
