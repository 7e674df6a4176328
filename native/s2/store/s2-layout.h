#pragma once

// Which experts a model has: their tensors in files, and the sizes of slots that hold them. Never changes.

#include "s2-policy.h"
#include "s2-store.h"

#include <cstdint>
#include <string>
#include <vector>

namespace s2 {

class Layout {
  public:
    static constexpr int32_t MAX_TENSORS = 4; // of a layer

    // Expert e's bytes are at offset + e * stride of the file, and go to `at` in its slot.
    struct Tensor {
        std::string name;
        int32_t     layer, part, file; // layer: dense; part: which of the layer's
        int64_t     offset, stride, bytes;
        int64_t     at;
    };

    struct Layer {
        int32_t              number, n_expert; // number: the model's
        int32_t              size_class = 0;
        int64_t              slot_bytes = 0;
        std::vector<int32_t> tensors;
        uint32_t             all() const { return (1u << tensors.size()) - 1; }
    };

    // Layers whose experts take equally many bytes share slots.
    struct SizeClass {
        int64_t slot_bytes;
        int32_t n_experts, n_layers;
    };

    explicit Layout(const s2_store_config & config); // throws std::runtime_error

    int32_t find(const char * name) const; // index of the tensor; -1: not one of ours
    int32_t n_layers() const { return (int32_t) layers_.size(); }
    int32_t n_experts() const { return n_experts_; }         // of all layers
    int32_t largest_layer() const { return largest_layer_; } // experts of one layer, at most

    const Tensor &                 tensor(int32_t i) const { return tensors_[i]; }
    const Tensor &                 tensor(int32_t layer, int32_t part) const { return tensors_[layers_[layer].tensors[part]]; }
    const Layer &                  layer(int32_t i) const { return layers_[i]; }
    const std::vector<SizeClass> & size_classes() const { return size_classes_; }
    const std::vector<int32_t> &   class_of() const { return class_of_; } // by layer

    // A number for a part of an expert, as names of reads are.
    uint64_t tag_of(Expert x, int32_t part) const { return ((uint64_t) x.layer * largest_layer_ + x.index) * MAX_TENSORS + part; }
    static int32_t part_of(uint64_t tag) { return (int32_t) (tag % MAX_TENSORS); }
    Expert         expert_of(uint64_t tag) const {
        return { (int32_t) (tag / MAX_TENSORS / largest_layer_), (int32_t) (tag / MAX_TENSORS % largest_layer_) };
    }

  private:
    void add_tensor(const s2_store_tensor & tensor, int32_t n_files);
    void classify();

    std::vector<Tensor>    tensors_;
    std::vector<Layer>     layers_;
    std::vector<SizeClass> size_classes_;
    std::vector<int32_t>   class_of_;
    int32_t                n_experts_ = 0, largest_layer_ = 0;
};

} // namespace s2
