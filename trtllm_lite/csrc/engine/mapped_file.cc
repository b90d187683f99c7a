#include "engine/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "errors.h"

namespace tl {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& found) {
  throw EngineError(path + ": expected an engine file that can be read, found: " + found +
                    "; give the directory that trtllm-lite build wrote");
}

// A file descriptor that is closed by its destructor unless it was released.
class FileDescriptor {
 public:
  // Non-blocking, so that a named pipe is refused below and does not block here.
  explicit FileDescriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) refuse(path, std::strerror(errno));
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  FileDescriptor file(path);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) refuse(path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(path, "not a regular file");
  if (status.st_size == 0) refuse(path, "an empty file");
  size_ = static_cast<std::size_t>(status.st_size);
  data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data_ == MAP_FAILED) refuse(path, std::strerror(errno));
  fd_ = file.release();
  checked_ = stamp();
}

MappedFile::~MappedFile() {
  ::munmap(data_, size_);
  ::close(fd_);
}

MappedFile::Stamp MappedFile::stamp() const {
  struct stat status{};
  if (::fstat(fd_, &status) != 0) refuse(path_, std::strerror(errno));
  return {.size = status.st_size, .seconds = status.st_mtim.tv_sec, .nanoseconds = status.st_mtim.tv_nsec};
}

void MappedFile::check_unchanged() const {
  if (stamp() == checked_) return;
  throw EngineError(path_ +
                    ": expected the file that was opened, found that it has been written to since: open the "
                    "engine again, and replace engines by renaming a new file, never in place");
}

}  // namespace tl
