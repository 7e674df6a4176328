#pragma once

// The model's files, opened, and what is said when reading them goes wrong.

#include <cstdint>
#include <string>
#include <vector>

namespace s2 {

class Files {
  public:
    // Throws std::runtime_error when one cannot be opened.
    explicit Files(const std::vector<std::string> & paths);
    Files(const Files &) = delete;
    ~Files();

    // Opens them for O_DIRECT, too, and reads a page of each that way; false when one refuses, and `why` says what.
    bool open_direct(std::string & why);

    size_t count() const { return files_.size(); }
    int64_t size(int32_t file) const { return files_[file].size; } // when it was opened, bytes
    int  cached(int32_t file) const { return files_[file].cached; } // descriptors: through the page cache,
    int  direct(int32_t file) const { return files_[file].direct; } // and past it, or -1
    bool changed(int32_t file) const; // size or time of the last write are not what they were when it was opened

    std::string cut_short(int32_t file, int64_t offset, int64_t missing) const;
    std::string failed(int32_t file, int64_t offset, int64_t bytes, int error) const;
    std::string was_changed(int32_t file) const;

  private:
    struct File {
        std::string path;
        int         cached = -1, direct = -1;
        int64_t     size = 0, written_s = 0, written_ns = 0;
    };
    std::vector<File> files_;

    void close_all();
};

} // namespace s2
