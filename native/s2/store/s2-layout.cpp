#include "s2-layout.h"

#include "s2-reader.h"

#include <algorithm>
#include <stdexcept>

namespace s2 {
namespace {

int64_t whole_pages(int64_t bytes) { return (bytes + Read::PAGE - 1) / Read::PAGE * Read::PAGE; }

} // namespace

Layout::Layout(const s2_store_config & config) {
    for (int32_t i = 0; i < config.n_tensors; ++i) {
        add_tensor(config.tensors[i], config.n_files);
    }
    if (layers_.empty()) {
        throw std::runtime_error("the model has no experts");
    }
    classify();
}

void Layout::add_tensor(const s2_store_tensor & tensor, int32_t n_files) {
    if (tensor.expert_bytes <= 0 || tensor.n_expert <= 0 || tensor.stride < tensor.expert_bytes || tensor.offset < 0) {
        throw std::runtime_error(std::string(tensor.name) + ": impossible size");
    }
    if (tensor.file < 0 || tensor.file >= n_files) {
        throw std::runtime_error(std::string(tensor.name) + ": in no file");
    }
    if (layers_.empty() || layers_.back().number != tensor.layer) {
        layers_.push_back({ tensor.layer, tensor.n_expert, 0, 0, {} });
        largest_layer_ = std::max(largest_layer_, tensor.n_expert);
        n_experts_ += tensor.n_expert;
    }
    Layer & layer = layers_.back();
    if (layer.n_expert != tensor.n_expert || layer.tensors.size() == MAX_TENSORS) {
        throw std::runtime_error(std::string(tensor.name) + ": does not fit its layer");
    }
    const bool    aligned = tensor.offset % Read::PAGE == 0 && tensor.stride % Read::PAGE == 0;
    const int32_t part    = (int32_t) layer.tensors.size();
    layer.tensors.push_back((int32_t) tensors_.size());
    tensors_.push_back({ tensor.name, n_layers() - 1, part, tensor.file, tensor.offset, tensor.stride, tensor.expert_bytes, layer.slot_bytes });
    layer.slot_bytes += whole_pages(tensor.expert_bytes) + (aligned ? 0 : Read::PAGE);
}

void Layout::classify() {
    for (Layer & layer : layers_) {
        const auto found = std::find_if(size_classes_.begin(), size_classes_.end(),
                                        [&](const SizeClass & c) { return c.slot_bytes == layer.slot_bytes; });
        layer.size_class = (int32_t) (found - size_classes_.begin());
        if (found == size_classes_.end()) {
            size_classes_.push_back({ layer.slot_bytes, 0, 0 });
        }
        size_classes_[layer.size_class].n_experts += layer.n_expert;
        size_classes_[layer.size_class].n_layers += 1;
        class_of_.push_back(layer.size_class);
    }
}

int32_t Layout::find(const char * name) const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
        if (tensors_[i].name == name) {
            return (int32_t) i;
        }
    }
    return -1;
}

} // namespace s2
