// The few-row kernels' promise, checked where the engine cannot run, as under an emulator: rows_check [TYPE...]
//
// As engine/bench/kernel_check.py does it: every row of a product is computed alone by one thread and then among
// others, at another place, by several numbers of threads; the bits must be the same. The row alone is compared with
// a double-precision product of the dequantised weights. An operation that our kernels decline is an error too.
//
// Prints a line per type, kind of product and buffer type; exits with 1 when something is wrong.

#include "s2-rows.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

static std::atomic<int> declined;

// The linker sends ggml's calls of s2_rows_forward through here.
extern "C" bool __real_s2_rows_forward(const ggml_compute_params * params, ggml_tensor * dst, s2_layout layout);
extern "C" bool __wrap_s2_rows_forward(const ggml_compute_params * params, ggml_tensor * dst, s2_layout layout) {
    const bool taken = __real_s2_rows_forward(params, dst, layout);
    declined += !taken;
    return taken;
}

namespace {

constexpr ggml_type TYPES[] = {
    GGML_TYPE_F16,  GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
    GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_MXFP4,
};
constexpr int64_t WIDTHS[]  = { 256, 512, 2048, 96, 160 };  // of a weight row; the last for types with blocks of 32
constexpr int64_t HEIGHTS[] = { 24, 40 };                   // weight rows
constexpr int     ROWS[]    = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 31, 32 };
constexpr int     MOST      = 32;
constexpr int     THREADS[] = { 1, 2, 3 };
constexpr int     EXPERTS = 5, USED = 3;
constexpr double  TOLERANCE = 0.02;  // of a result's norm: activations are rounded to 8 bits

using Floats = std::vector<float>;

std::mt19937 generator(1);

Floats random_values(int64_t n) {
    std::normal_distribution<float> normal;
    Floats values(n);
    std::generate(values.begin(), values.end(), [&] { return normal(generator); });
    return values;
}

// Tensors that live as long as this does.
struct Context {
    ggml_context *        ggml;
    ggml_backend_buffer_t buffer = nullptr;

    Context() : ggml(ggml_init({ 16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true })) {}
    Context(const Context &) = delete;
    ~Context() {
        ggml_backend_buffer_free(buffer);
        ggml_free(ggml);
    }
    void allocate(ggml_backend_buffer_type_t type) { buffer = ggml_backend_alloc_ctx_tensors_from_buft(ggml, type); }
};

struct Weights {
    ggml_type type;
    bool      by_expert;
    int64_t   width, height;

    int64_t n_rows() const { return height * (by_expert ? EXPERTS : 1); }
    ggml_tensor * tensor(ggml_context * ggml) const {
        return by_expert ? ggml_new_tensor_3d(ggml, type, width, height, EXPERTS) : ggml_new_tensor_2d(ggml, type, width, height);
    }
};

// Rows to multiply, each with one activation vector or one per expert it uses.
struct Rows {
    const Weights &      weights;
    int                  vectors;
    Floats               values;
    std::vector<int32_t> ids;  // USED per row, or none

    int slots() const { return ids.empty() ? 1 : USED; }
    int count() const { return (int) (values.size() / (vectors * weights.width)); }

    Rows take(const std::vector<int> & which) const {
        Rows taken{ weights, vectors, {}, {} };
        for (const int i : which) {
            const auto value = values.begin() + i * vectors * weights.width;
            taken.values.insert(taken.values.end(), value, value + vectors * weights.width);
            if (!ids.empty()) {
                taken.ids.insert(taken.ids.end(), ids.begin() + i * USED, ids.begin() + (i + 1) * USED);
            }
        }
        return taken;
    }
};

// Experts share a vector and are the same for all rows, or each has its own and they are mixed.
Rows make_rows(const Weights & weights, bool mixed) {
    const int vectors = weights.by_expert && mixed ? USED : 1;
    Rows rows{ weights, vectors, random_values(MOST * vectors * weights.width), {} };
    for (int i = 0; weights.by_expert && i < MOST * USED; ++i) {
        const int row = i / USED;
        rows.ids.push_back((i % USED * 2 + (mixed ? row * row : 0)) % EXPERTS);
    }
    return rows;
}

ggml_tensor * product(ggml_context * ggml, ggml_tensor * weights, const Rows & rows) {
    const int64_t width = rows.weights.width;
    if (rows.ids.empty()) {
        return ggml_mul_mat(ggml, weights, ggml_new_tensor_2d(ggml, GGML_TYPE_F32, width, rows.count()));
    }
    ggml_tensor * values = ggml_new_tensor_3d(ggml, GGML_TYPE_F32, width, rows.vectors, rows.count());
    return ggml_mul_mat_id(ggml, weights, values, ggml_new_tensor_2d(ggml, GGML_TYPE_I32, USED, rows.count()));
}

// The products of all rows in one graph, computed once for each number of threads.
std::vector<Floats> compute(ggml_backend_t backend, ggml_tensor * weights, const Rows & rows, const std::vector<int> & threads) {
    Context context;
    ggml_tensor * result = product(context.ggml, weights, rows);
    context.allocate(ggml_backend_cpu_buffer_type());
    ggml_backend_tensor_set(result->src[1], rows.values.data(), 0, ggml_nbytes(result->src[1]));
    if (!rows.ids.empty()) {
        ggml_backend_tensor_set(result->src[2], rows.ids.data(), 0, ggml_nbytes(result->src[2]));
    }
    ggml_cgraph * graph = ggml_new_graph(context.ggml);
    ggml_build_forward_expand(graph, result);
    std::vector<Floats> results;
    for (const int n : threads) {
        Floats values(ggml_nelements(result), std::numeric_limits<float>::quiet_NaN());  // what is left out shows
        ggml_backend_tensor_set(result, values.data(), 0, ggml_nbytes(result));
        ggml_backend_cpu_set_n_threads(backend, n);
        ggml_backend_graph_compute(backend, graph);
        ggml_backend_tensor_get(result, values.data(), 0, ggml_nbytes(result));
        results.push_back(values);
    }
    return results;
}

// The largest distance of a row's result from the true product, in norms of the latter; NaN when there is one.
double error_of(const Floats & results, const Floats & weights, const Rows & rows) {
    const int64_t width = rows.weights.width, height = rows.weights.height;
    double largest = 0.0;
    for (int64_t i = 0; i < rows.count() * rows.slots(); ++i) {
        const float * w = weights.data() + (rows.ids.empty() ? 0 : rows.ids[i] * height * width);
        const float * x = rows.values.data() + (i / rows.slots() * rows.vectors + i % rows.slots() % rows.vectors) * width;
        double distance = 0.0, norm = 0.0;
        for (int64_t column = 0; column < height; ++column) {
            double sum = 0.0;
            for (int64_t k = 0; k < width; ++k) {
                sum += (double) w[column * width + k] * x[k];
            }
            distance += std::pow(results[i * height + column] - sum, 2);
            norm     += sum * sum;
        }
        const double error = std::sqrt(distance / norm);
        largest = std::isnan(error) ? error : std::max(largest, error);  // max() keeps a NaN that comes first
    }
    return largest;
}

// What is wrong with the products of one kind of rows.
void check_rows(ggml_backend_t backend, ggml_tensor * tensor, const Floats & dequantised, const Rows & rows, std::vector<std::string> & wrong) {
    const std::string where = std::to_string(rows.weights.height) + " x " + std::to_string(rows.weights.width) + ", ";
    const size_t size = rows.weights.height * rows.slots();
    Floats alone;
    for (int i = 0; i < MOST; ++i) {
        const Floats one = compute(backend, tensor, rows.take({ i }), { 1 })[0];
        alone.insert(alone.end(), one.begin(), one.end());
    }
    const double error = error_of(alone, dequantised, rows);
    if (!(error <= TOLERANCE)) {
        wrong.push_back(where + "off by " + std::to_string(error) + " of the norm");
    }
    for (const int n : ROWS) {
        std::vector<int> which;
        Floats expected;
        for (int i = 0; i < n; ++i) {
            which.push_back((5 * n + i) % MOST);  // not at the place it had alone
            expected.insert(expected.end(), alone.begin() + which[i] * size, alone.begin() + (which[i] + 1) * size);
        }
        const auto results = compute(backend, tensor, rows.take(which), { std::begin(THREADS), std::end(THREADS) });
        for (size_t i = 0; i < results.size(); ++i) {
            if (memcmp(results[i].data(), expected.data(), expected.size() * sizeof(float)) != 0) {
                wrong.push_back(where + std::to_string(n) + " rows, " + std::to_string(THREADS[i]) + " threads: bits differ from one row alone");
            }
        }
    }
}

// False when the buffer type does not take these weights.
bool check_weights(ggml_backend_t backend, ggml_backend_buffer_type_t buffers, const Weights & weights, std::vector<std::string> & wrong) {
    Context context;
    ggml_tensor * tensor = weights.tensor(context.ggml);
    context.allocate(buffers);
    if (!ggml_backend_supports_op(backend, product(context.ggml, tensor, make_rows(weights, false)))) {
        return false;
    }
    const Floats values = random_values(weights.n_rows() * weights.width);
    std::vector<char> packed(ggml_nbytes(tensor));
    ggml_quantize_chunk(weights.type, values.data(), packed.data(), 0, weights.n_rows(), weights.width, nullptr);
    Floats dequantised(values.size());
    ggml_get_type_traits(weights.type)->to_float(packed.data(), dequantised.data(), values.size());
    ggml_backend_tensor_set(tensor, packed.data(), 0, packed.size());
    for (int mixed = 0; mixed <= weights.by_expert; ++mixed) {
        check_rows(backend, tensor, dequantised, make_rows(weights, mixed), wrong);
    }
    return true;
}

// Checks all shapes; true when nothing is wrong.
bool check(ggml_backend_t backend, ggml_backend_buffer_type_t buffers, ggml_type type, bool by_expert) {
    std::vector<std::string> wrong;
    int shapes = 0;
    declined = 0;
    for (const int64_t height : HEIGHTS) {
        for (const int64_t width : WIDTHS) {
            if (width % ggml_blck_size(type) == 0) {
                shapes += check_weights(backend, buffers, { type, by_expert, width, height }, wrong);
            }
        }
    }
    if (shapes == 0) {
        return true;
    }
    if (declined > 0) {
        wrong.insert(wrong.begin(), "our kernels declined it " + std::to_string(declined) + " times");
    }
    printf("%-6s %-6s %-11s %2d shapes: %s\n", ggml_type_name(type), by_expert ? "expert" : "dense", ggml_backend_buft_name(buffers), shapes,
           wrong.empty() ? "right" : "WRONG");
    for (size_t i = 0; i < wrong.size() && i < 4; ++i) {
        printf("    %s\n", wrong[i].c_str());
    }
    fflush(stdout);
    return wrong.empty();
}

} // namespace

int main(int argc, char ** argv) {
    const auto asked = [&](ggml_type type) {
        return argc == 1 || std::any_of(argv + 1, argv + argc, [&](const char * name) { return strcmp(name, ggml_type_name(type)) == 0; });
    };
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_use_ref(backend, true);
    std::vector<ggml_backend_buffer_type_t> buffers = { ggml_backend_cpu_buffer_type() };
    const auto extra = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(ggml_backend_cpu_reg(), "ggml_backend_dev_get_extra_bufts");
    for (auto * type = extra(ggml_backend_get_device(backend)); type != nullptr && *type != nullptr; ++type) {
        buffers.push_back(*type);
    }
    bool right = true;
    for (const ggml_type type : TYPES) {
        for (const bool by_expert : { false, true }) {
            for (const auto type_of_buffers : buffers) {
                right &= !asked(type) || check(backend, type_of_buffers, type, by_expert);
            }
        }
    }
    ggml_backend_free(backend);
    return right ? 0 : 1;
}
