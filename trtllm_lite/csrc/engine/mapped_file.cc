#include "engine/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "errors.h"

namespace tl {
namespace {

class FileDescriptor {
 public:
  // Non-blocking, so that a named pipe is refused below instead of waited for.
  explicit FileDescriptor(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) fail(std::strerror(errno));
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  [[noreturn]] void fail(const std::string& found) const {
    throw EngineError(path_ + ": expected an engine file that can be read, found: " + found +
                      "; give the directory that trtllm-lite build wrote");
  }

 private:
  const std::string& path_;
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const FileDescriptor file(path);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) file.fail(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) file.fail("not a regular file");
  if (status.st_size == 0) file.fail("an empty file");
  size_ = static_cast<std::size_t>(status.st_size);
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data_ == MAP_FAILED) file.fail(std::strerror(errno));
}

MappedFile::~MappedFile() { ::munmap(data_, size_); }

}  // namespace tl
