#pragma once

#include "s2-graph.h"

#include "ggml-backend.h"

#include <cstdint>
#include <vector>

// Routing of the last decode call, on the host. Rows stand in batch order; a call of several micro-batches
// appends. The last layer holds only the rows whose logits were asked for.
struct s2_routing_layer {
    int                  il       = -1;
    int64_t              n_expert = 0;
    int64_t              n_used   = 0;
    int64_t              n_rows   = 0;
    std::vector<float>   logits; // [n_rows][n_expert]
    std::vector<int32_t> ranks;  // [n_rows][n_expert], best first
};

class s2_readout {
  public:
    // Starts a decode call; what the last one left is dropped, its memory is kept.
    void begin();

    // Queues the copies of one micro-batch. They are complete after llama_context::synchronize().
    void fetch(ggml_backend_sched_t sched, const std::vector<s2_routing_node> & nodes);

    int32_t n_layers() const { return n; }

    const s2_routing_layer & layer(int32_t i) const { return layers[i]; }

  private:
    s2_routing_layer & layer_of(const s2_routing_node & node);

    std::vector<s2_routing_layer> layers; // the first n are in use
    int32_t                       n = 0;
};
