#include "s2-reader.h"

#include "s2-reader-base.h"
#include "s2-reader-probe.h"

#include <algorithm>

namespace s2 {
namespace {

// A reader that works by this method; null where there is none, and `why` says so.
std::unique_ptr<ReaderBase> make_reader(const std::shared_ptr<Files> & files, const ReaderParams & params, Method method,
                                        const Done & done, std::string & why) {
    if (passes_by_cache(method) && !files->open_direct(why)) {
        return nullptr;
    }
    if (method == Method::Uring || method == Method::UringBuffered) {
        return make_uring_reader(files, params, method, done, why);
    }
    return make_thread_reader(files, params, method, done);
}

// The method asked for, then those most like it. The last always works.
std::vector<Method> attempts(Method method) {
    switch (method) {
        case Method::Uring:         return { Method::Uring, Method::Direct, Method::UringBuffered, Method::Buffered };
        case Method::Direct:        return { Method::Direct, Method::Buffered };
        case Method::UringBuffered: return { Method::UringBuffered, Method::Buffered };
        default:                    return { Method::Buffered };
    }
}

std::unique_ptr<Reader> open_as_asked(const std::shared_ptr<Files> & files, const ReaderParams & params, const Done & done) {
    std::string refused;
    std::vector<std::string> said;
    for (const Method method : attempts(params.method)) {
        std::string why;
        auto reader = make_reader(files, params, method, done, why);
        if (reader) {
            reader->set_reason(std::string(method_words(method)) + (said.empty() ? ", as asked for" : refused));
            return reader;
        }
        if (std::find(said.begin(), said.end(), why) == said.end()) {
            said.push_back(why);
            refused += "; " + why;
        }
    }
    return nullptr;
}

std::unique_ptr<Reader> open_fastest(const std::shared_ptr<Files> & files, const ReaderParams & params, const Done & done) {
    const Choice choice = probe(*files, [&](Method method, Done probed, std::string & why) -> std::unique_ptr<Reader> {
        ReaderParams plain = params;
        plain.fault = nullptr;
        return make_reader(files, plain, method, probed, why);
    });
    std::string why;
    auto reader = make_reader(files, params, choice.method, done, why);
    if (!reader) { // it worked a moment ago
        reader = make_thread_reader(files, params, Method::Buffered, done);
    }
    reader->set_reason(choice.reason + (why.empty() ? "" : "; " + why));
    return reader;
}

} // namespace

const char * method_name(Method method) {
    switch (method) {
        case Method::Auto:          return "auto";
        case Method::Buffered:      return "buffered";
        case Method::Direct:        return "direct";
        case Method::Uring:         return "io_uring";
        case Method::UringBuffered: return "io_uring-buffered";
    }
    return "?";
}

Reader::~Reader() = default;

std::unique_ptr<Reader> Reader::open(ReaderParams params, Done done) {
    const auto files = std::make_shared<Files>(params.files);
    return params.method == Method::Auto ? open_fastest(files, params, done) : open_as_asked(files, params, done);
}

} // namespace s2
