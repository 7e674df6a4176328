#include "s2-readout.h"

#include "ggml.h"

void s2_readout::begin() {
    n = 0;
}

s2_routing_layer & s2_readout::layer_of(const s2_routing_node & node) {
    for (int32_t i = 0; i < n; ++i) {
        if (layers[i].il == node.il) {
            return layers[i];
        }
    }
    if (n == (int32_t) layers.size()) {
        layers.emplace_back();
    }
    s2_routing_layer & layer = layers[n++];
    layer.il       = node.il;
    layer.n_expert = node.logits->ne[0];
    layer.n_used   = node.n_used;
    layer.n_rows   = 0;
    layer.logits.clear();
    layer.ranks.clear();
    return layer;
}

void s2_readout::fetch(ggml_backend_sched_t sched, const std::vector<s2_routing_node> & nodes) {
    for (const auto & node : nodes) {
        s2_routing_layer & layer = layer_of(node);

        const size_t  offset = (size_t) (layer.n_rows * layer.n_expert);
        const int64_t rows   = node.logits->ne[1];
        const size_t  count  = offset + (size_t) (rows * layer.n_expert);

        // Growing moves what earlier micro-batches still write to; their copies must have landed.
        if (layer.n_rows > 0 && count > layer.logits.capacity()) {
            ggml_backend_sched_synchronize(sched);
        }
        layer.logits.resize(count);
        layer.ranks.resize(count);
        layer.n_rows += rows;

        ggml_backend_t logits_backend = ggml_backend_sched_get_tensor_backend(sched, node.logits);
        ggml_backend_t ranks_backend  = ggml_backend_sched_get_tensor_backend(sched, node.ranks);
        ggml_backend_tensor_get_async(logits_backend, node.logits, layer.logits.data() + offset, 0, ggml_nbytes(node.logits));
        ggml_backend_tensor_get_async(ranks_backend,  node.ranks,  layer.ranks.data()  + offset, 0, ggml_nbytes(node.ranks));
    }
}
