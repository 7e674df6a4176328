#include "s2-files.h"

#include "s2-reader.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <stdexcept>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace s2 {
namespace {

std::string error_text(int error) {
    return std::generic_category().message(error);
}

std::string grouped(int64_t number) { // 4096: "4,096"
    std::string text = std::to_string(number);
    for (int at = (int) text.size() - 3; at > (number < 0 ? 1 : 0); at -= 3) {
        text.insert(at, ",");
    }
    return text;
}

int open_read(const std::string & path, int flags) {
    int fd;
    do {
        fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

// Whether a page can be read past the page cache, at an odd page where there is one: some filesystems want reads
// aligned to more than a page. 0 or the error.
int read_a_page(int fd, int64_t size) {
    const std::unique_ptr<void, void (*)(void *)> page(std::aligned_alloc(Read::PAGE, Read::PAGE), std::free);
    const int64_t at = size > Read::PAGE ? Read::PAGE : 0;
    ssize_t n;
    do {
        n = pread(fd, page.get(), Read::PAGE, at);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? errno : 0;
}

} // namespace

Files::Files(const std::vector<std::string> & paths) : files_(paths.size()) {
    for (size_t i = 0; i < paths.size(); ++i) {
        File & file = files_[i];
        file.path   = paths[i];
        file.cached = open_read(file.path, 0);
        struct stat status;
        if (file.cached < 0 || fstat(file.cached, &status) != 0) {
            const int error = errno;
            close_all();
            throw std::runtime_error(file.path + ": " + error_text(error));
        }
        file.size       = status.st_size;
        file.written_s  = status.st_mtim.tv_sec;
        file.written_ns = status.st_mtim.tv_nsec;
        posix_fadvise(file.cached, 0, 0, POSIX_FADV_RANDOM); // what lies behind an expert is not wanted with it
    }
}

Files::~Files() {
    close_all();
}

void Files::close_all() {
    for (File & file : files_) {
        for (int * fd : { &file.cached, &file.direct }) {
            if (*fd >= 0) {
                close(*fd);
                *fd = -1;
            }
        }
    }
}

bool Files::open_direct(std::string & why) {
    for (File & file : files_) {
        if (file.direct < 0) {
            file.direct = open_read(file.path, O_DIRECT);
        }
        const int error = file.direct < 0 ? errno : read_a_page(file.direct, file.size);
        if (error) {
            why = "O_DIRECT is refused (" + error_text(error) + ")";
            return false;
        }
    }
    return true;
}

bool Files::changed(int32_t i) const {
    const File & file = files_[i];
    struct stat status;
    return fstat(file.cached, &status) != 0 || status.st_size != file.size || status.st_mtim.tv_sec != file.written_s ||
           status.st_mtim.tv_nsec != file.written_ns;
}

std::string Files::cut_short(int32_t file, int64_t offset, int64_t missing) const {
    return files_[file].path + ": " + grouped(missing) + " bytes missing at " + grouped(offset) + ": the file was cut short";
}

std::string Files::failed(int32_t file, int64_t offset, int64_t bytes, int error) const {
    return files_[file].path + ": reading " + grouped(bytes) + " bytes at " + grouped(offset) + ": " + error_text(error);
}

std::string Files::was_changed(int32_t file) const {
    return files_[file].path + ": was changed while it was in use";
}

} // namespace s2
