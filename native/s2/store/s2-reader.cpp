#include "s2-reader.h"

#include "s2-reader-base.h"

namespace s2 {

const char * method_name(Method method) {
    switch (method) {
        case Method::Auto:          return "auto";
        case Method::Buffered:      return "buffered";
        case Method::Direct:        return "direct";
        case Method::Uring:         return "io_uring";
        case Method::UringBuffered: return "io_uring buffered";
    }
    return "?";
}

Reader::~Reader() = default;

std::unique_ptr<Reader> Reader::open(ReaderParams params, Done done) {
    const auto files = std::make_shared<Files>(params.files);
    std::string why;
    const bool direct = params.method != Method::Buffered && params.method != Method::UringBuffered && files->open_direct(why);
    auto reader = make_thread_reader(files, params, direct ? Method::Direct : Method::Buffered, std::move(done));
    reader->set_reason(why);
    return reader;
}

} // namespace s2
