#pragma once

// Which way of reading is the fastest here, by reading a little in each way.

#include "s2-reader-base.h"

#include <functional>
#include <memory>
#include <string>

namespace s2 {

struct Choice {
    Method      method;
    std::string reason; // in one line, with figures
};

using Maker = std::function<std::unique_ptr<Reader>(Method, Done, std::string & why)>;

// Reads pieces spread over all files in every way that `make` can make, compares them with what pread gives and takes the
// time. Takes some 0.2 s on a slow disk, a few ms on a fast one. Buffered is what is left when nothing can be read.
Choice probe(const Files & files, const Maker & make);

const char * method_words(Method method); // "io_uring with O_DIRECT"

} // namespace s2
