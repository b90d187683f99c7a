// libcuda.so.1 for machines without a GPU: device memory is host memory, and a stream runs as late as it may, when
// somebody waits for it. So a buffer that is reused too early gives wrong tokens, here as on a GPU.
//
// The "kernels" are those of a toy model: a token's successor is the sum of all tokens up to it, modulo the vocabulary.
// Its KV cache holds the tokens. Token kPoison gives non-finite logits. Each of several ranks adds up the tokens of its
// positions, and then the ranks add up their sums.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/rank_table.cuh"
#include "fake_streams.h"
#include "sample/slot.cuh"

namespace {

using fake::Collective, fake::Context, fake::count, fake::counted, fake::Lock, fake::number_from, fake::run_until,
    fake::Stream, fake::Work;
constexpr int kTokenRowSize = 8;  // elements of a row that takes the place of a token
constexpr int kByteRowSize = 5;   // the same of rows of bytes
constexpr int kPoison = 13, kGarbage = 3, kInvalidValue = 1, kOutOfMemory = 2, kInvalidContext = 201,
              kNoPeerAccess = 217, kInvalidHandle = 400, kNotReady = 600, kOutOfResources = 701,
              kPeerAccessAlreadyEnabled = 704, kLaunchFailed = 719;

struct Event {
  Stream* stream = nullptr;
  std::int64_t num_recorded = 0, num_reached = 0;
  std::int64_t num_kernels = 0;  // kernels executed before this event
};
using Graph = std::vector<Work>;

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream* stream;
  void* attributes;
  unsigned num_attributes;
};

// CUDA_MEMCPY3D
constexpr unsigned kHostMemory = 1;
struct CopyEnd {
  std::size_t x, y, z, level;
  unsigned memory_type;
  char *host, *device;
  void *array, *reserved;
  std::size_t pitch, height;

  char* row(std::size_t y_offset, std::size_t z_offset) const {
    return (memory_type == kHostMemory ? host : device) + x + ((z + z_offset) * height + y + y_offset) * pitch;
  }
};
struct Copy3d {
  CopyEnd from, to;
  std::size_t width, height, depth;
};

std::size_t& allocated() {
  static std::size_t bytes = 0;
  return bytes;
}
std::map<void*, std::size_t>& allocations() {
  static std::map<void*, std::size_t> sizes;
  return sizes;
}
constexpr std::size_t kTotalBytes = std::size_t{1} << 30, kPage = 4096;

// Physical memory by its file: its bytes, and where it is mapped.
struct Access {
  int location_type, device, flags;
};
struct Physical {
  std::size_t bytes;
  char* address;
};
std::map<std::uint64_t, Physical>& physical() {
  static std::map<std::uint64_t, Physical> memory;
  return memory;
}

// The function that fails when it is called for the `in`th time from now on; later calls succeed.
struct Failure {
  std::string function;
  int in = 0;
};
Failure& failure() {
  static Failure failure;
  return failure;
}
bool fails(const char* function) { return failure().function == function && --failure().in == 0; }

// Reads a kernel's parameters in order: packed, each aligned to its size, or through an array of pointers, which the
// executor ends with a null.
class Arguments {
 public:
  Arguments(void** each, void** extra) : each_(each) {
    if (each_) return;
    const auto* data = static_cast<const char*>(extra[1]);
    bytes_.assign(data, data + *static_cast<std::size_t*>(extra[3]));
  }
  template <typename T>
  T next() {
    T value{};
    if (each_) {
      if (*each_) std::memcpy(&value, *each_++, sizeof(T));
      return value;
    }
    position_ = (position_ + alignof(T) - 1) / alignof(T) * alignof(T);
    if (position_ + sizeof(T) <= bytes_.size()) std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }
  bool complete() const { return each_ ? *each_ == nullptr : position_ == bytes_.size(); }

 private:
  void** each_;
  std::vector<char> bytes_;
  std::size_t position_ = 0;
};

// The arguments of a tensor map.
struct alignas(64) TensorMap {
  const void* address;
  std::int64_t data_type, columns, rows, row_bytes, box_columns, box_rows, swizzle, promotion, fill;
};
static_assert(sizeof(TensorMap) == 128);

using Kernel = std::function<Work(Arguments&, unsigned blocks)>;

Work embed(Arguments& a, unsigned blocks) {
  auto* x = a.next<int*>();
  const auto *ids = a.next<const int*>(), *slots = a.next<const int*>(), *last = a.next<const int*>();
  return [=] {
    for (unsigned t = 0; t < blocks; ++t) {
      x[t] = slots && slots[t] >= 0 ? last[slots[t]] : ids[t];
      if (x[t] >= 0) continue;
      count("ended");
      x[t] = kGarbage;  // results of this row must not be used
    }
  };
}

// Like "embed", but a token ~i is the first number of row i.
Work embed_rows(Arguments& a, unsigned blocks) {
  auto* x = a.next<int*>();
  const auto *ids = a.next<const int*>(), *slots = a.next<const int*>(), *last = a.next<const int*>();
  const auto* rows = a.next<const std::uint16_t*>();
  return [=] {
    for (unsigned t = 0; t < blocks; ++t) {
      const bool is_row = slots[t] < 0 && ids[t] < 0;
      x[t] = slots[t] >= 0 ? last[slots[t]] : is_row ? rows[~ids[t] * kTokenRowSize] : ids[t];
      if (is_row) count("token_rows");
      if (x[t] < 0) x[t] = kGarbage;
    }
  };
}

// Like "embed", but a token ~i is made of row i of bytes: the product of the row and (1, 8, 0, ..).
Work embed_bytes(Arguments& a, unsigned blocks) {
  auto* x = a.next<int*>();
  const auto *ids = a.next<const int*>(), *slots = a.next<const int*>(), *last = a.next<const int*>();
  const auto* rows = a.next<const std::uint8_t*>();
  return [=] {
    for (unsigned t = 0; t < blocks; ++t) {
      const bool is_row = slots[t] < 0 && ids[t] < 0;
      const std::uint8_t* row = rows + (is_row ? ~ids[t] * kByteRowSize : 0);
      x[t] = slots[t] >= 0 ? last[slots[t]] : is_row ? row[0] + 8 * row[1] : ids[t];
      if (is_row) count("token_rows");
      if (x[t] < 0) x[t] = kGarbage;
    }
  };
}

// Computes a row of eight numbers for each sequence of an encoder: the sum of its tokens, and multiples of the sum.
Work pool_sums(Arguments& a, unsigned blocks) {
  auto* y = a.next<float*>();
  const auto *x = a.next<const int*>(), *cu_seqlens = a.next<const int*>();
  return [=] {
    for (unsigned s = 0; s < blocks; ++s) {
      const int sum = std::accumulate(x + cu_seqlens[s], x + cu_seqlens[s + 1], 0);
      for (unsigned i = 0; i < 8; ++i) y[s * 8 + i] = static_cast<float>(sum * static_cast<int>(i + 1));
    }
  };
}

using tl::RankTable;

// The kernel "embed" for the rank that samples tokens, which has its own last tokens.
Work embed_of_rank(Arguments& a, unsigned blocks) {
  auto* x = a.next<int*>();
  const auto *ids = a.next<const int*>(), *slots = a.next<const int*>();
  const char* last = a.next<const char*>();
  const auto* ranks = a.next<const RankTable*>();
  return [=] {
    const auto* drawn = reinterpret_cast<const int*>(last - ranks->states[ranks->rank] + ranks->drawing);
    for (unsigned t = 0; t < blocks; ++t) {
      x[t] = slots[t] >= 0 ? drawn[slots[t]] : ids[t];
      if (x[t] < 0) x[t] = kGarbage;
    }
  };
}

// Adds up only the tokens of this rank's positions.
Work attend_of_rank(Arguments& a, unsigned blocks) {
  auto *sums = a.next<int*>(), *x = a.next<int*>();
  auto* cache = a.next<std::uint16_t*>();
  const auto *cu_seqlens = a.next<const int*>(), *past_lens = a.next<const int*>(), *tables = a.next<const int*>();
  const int stride = a.next<int>(), page = a.next<int>(), block = a.next<int>();
  const auto* ranks = a.next<const RankTable*>();
  return [=] {
    for (unsigned s = 0; s < blocks; ++s) {
      const int first = cu_seqlens[s], count = cu_seqlens[s + 1] - first;
      const auto place = [&](int position) {
        return cache + tables[s * stride + position / page] * block + position % page;
      };
      for (int i = 0; i < count; ++i) *place(past_lens[s] + i) = static_cast<std::uint16_t>(x[first + i]);
      for (int i = 0, sum = 0; i < past_lens[s] + count; ++i) {
        if (static_cast<unsigned>(i) % ranks->count == ranks->rank) sum += *place(i);
        if (i >= past_lens[s]) sums[first + i - past_lens[s]] = sum;
      }
    }
  };
}

// The state that the ranks of an engine share; the key is the address of the first rank's arena.
std::map<void*, Collective>& collectives() {
  static std::map<void*, Collective> collectives;
  return collectives;
}

struct Sums {
  int* sums;
  int rows;
};
void add_sums(void* const* each, int count) {
  const auto sums_of = [&](int rank) { return static_cast<const Sums*>(each[rank]); };
  for (int row = 0; row < sums_of(0)->rows; ++row) {
    int sum = 0;
    for (int rank = 0; rank < count; ++rank) sum += sums_of(rank)->sums[row];
    for (int rank = 0; rank < count; ++rank) sums_of(rank)->sums[row] = sum;
  }
}

// Adds up the values of all ranks, which wait for each other until one raises the alarm.
Work add_up(Arguments& a, unsigned) {
  auto own = std::make_shared<Sums>();
  own->sums = a.next<int*>();
  const auto* ranks = a.next<const RankTable*>();
  own->rows = a.next<int>();
  return [=] {
    if (ranks->is_over != 0) return true;
    const auto rank = static_cast<int>(ranks->rank), count = static_cast<int>(ranks->count);
    return collectives()[reinterpret_cast<void*>(ranks->arenas[0])].come(rank, count, own.get(), add_sums);
  };
}

// Computes the logits of this rank's part of the vocabulary.
Work score_of_rank(Arguments& a, unsigned blocks) {
  auto* logits = a.next<float*>();
  const auto *sums = a.next<const int*>(), *x = a.next<const int*>(), *indices = a.next<const int*>();
  const int vocab = a.next<int>(), part = a.next<int>();
  const auto* ranks = a.next<const RankTable*>();
  return [=] {
    const int first = static_cast<int>(ranks->rank) * part;
    for (unsigned r = 0; r < blocks; ++r) {
      const int token = indices[r];
      for (int v = 0; v < part; ++v) {
        const int distance = std::abs(first + v - sums[token] % vocab);
        logits[static_cast<int>(r) * part + v] = x[token] == kPoison ? NAN : -static_cast<float>(distance);
      }
    }
  };
}

// Places the gathered rows of all ranks side by side.
Work side_by_side(Arguments& a, unsigned blocks) {
  auto* logits = a.next<float*>();
  const auto* parts = a.next<const float*>();
  const int part = a.next<int>(), vocab = a.next<int>();
  return [=] {
    for (int r = 0, rows = static_cast<int>(blocks); r < rows; ++r) {
      for (int v = 0; v < vocab; ++v) logits[r * vocab + v] = parts[(v / part * rows + r) * part + v % part];
    }
  };
}

constexpr unsigned kRowWidth = 64;

// The values that a stage sends for each token: the token itself, and the sum so far.
Work pack_rows(Arguments& a, unsigned blocks) {
  auto* rows = a.next<std::uint16_t*>();
  const auto *x = a.next<const int*>(), *sums = a.next<const int*>();
  return [=] {
    for (unsigned t = 0; t < blocks; ++t) {
      rows[t * kRowWidth] = static_cast<std::uint16_t>(x[t]);
      rows[t * kRowWidth + 1] = static_cast<std::uint16_t>(sums[t]);
    }
  };
}

Work unpack_rows(Arguments& a, unsigned blocks) {
  auto *x = a.next<int*>(), *given = a.next<int*>();
  const auto* rows = a.next<const std::uint16_t*>();
  return [=] {
    for (unsigned t = 0; t < blocks; ++t) {
      x[t] = rows[t * kRowWidth];
      given[t] = static_cast<std::int16_t>(rows[t * kRowWidth + 1]);
    }
  };
}

// The stage's own sum, plus its difference from the previous stage's sum: equal to both if both are right.
Work compare(Arguments& a, unsigned blocks) {
  auto* sums = a.next<int*>();
  const auto* given = a.next<const int*>();
  return [=] {
    for (unsigned t = 0; t < blocks; ++t) sums[t] += sums[t] - given[t];
  };
}

// Writes the tokens to the cache and adds up the sequence so far, with one block per sequence from `first` on.
Work attend(Arguments& a, unsigned blocks) {
  auto *sums = a.next<int*>(), *x = a.next<int*>();
  auto* cache = a.next<std::uint16_t*>();
  const auto *cu_seqlens = a.next<const int*>(), *past_lens = a.next<const int*>(), *tables = a.next<const int*>();
  const int stride = a.next<int>(), page = a.next<int>(), block = a.next<int>();
  return [=] {
    std::int64_t num_read = 0, num_sequences = 0;
    for (unsigned s = 0; s < blocks; ++s) {
      const int first = cu_seqlens[s], count = cu_seqlens[s + 1] - first;
      if (count > 0) {
        ++num_sequences;
        num_read += past_lens[s] + count;
      }
      const auto place = [&](int position) {
        return cache + tables[s * stride + position / page] * block + position % page;
      };
      for (int i = 0; i < count; ++i) *place(past_lens[s] + i) = static_cast<std::uint16_t>(x[first + i]);
      for (int i = 0, sum = 0; i < past_lens[s] + count; ++i) {
        sum += *place(i);
        if (i >= past_lens[s]) sums[first + i - past_lens[s]] = sum;
      }
    }
    count("keys_read", num_read);
    count("sequences", num_sequences);
  };
}

float to_float(std::uint16_t bfloat16) {
  const std::uint32_t bits = static_cast<std::uint32_t>(bfloat16) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Adds to each token's sum the value of its adapter: the first element of a times the sum of the second row of b.
Work adapt(Arguments& arguments, unsigned blocks) {
  auto* sums = arguments.next<int*>();
  const auto *a = arguments.next<const std::uint16_t*>(), *b = arguments.next<const std::uint16_t*>();
  const auto *ranks = arguments.next<const int*>(), *rows = arguments.next<const int*>(),
             *ends = arguments.next<const int*>();
  const int stride = arguments.next<int>() * 256, max_rank = arguments.next<int>(), num_rows = arguments.next<int>();
  const auto of_slot = [stride](const auto* first, int slot) {
    using T = std::remove_reference_t<decltype(*first)>;
    return reinterpret_cast<T*>(reinterpret_cast<const char*>(first) + std::ptrdiff_t{slot} * stride);
  };
  return [=] {
    std::vector<int> listed(rows, rows + num_rows);
    std::sort(listed.begin(), listed.end());
    for (int i = 0; i < num_rows; ++i) {
      if (listed[static_cast<unsigned>(i)] != i) std::abort();  // every row is listed exactly once
    }
    for (int slot = 0, at = 0; slot < static_cast<int>(blocks); ++slot) {
      for (; at < ends[slot]; ++at) {
        const std::uint16_t* row = of_slot(b, slot) + max_rank;
        float value = 0;
        const int num_ranks = *of_slot(ranks, slot);
        for (int rank = 0; rank < num_ranks; ++rank) value += to_float(*of_slot(a, slot)) * to_float(row[rank]);
        sums[rows[at]] += static_cast<int>(value);
      }
    }
  };
}

Work score(Arguments& a, unsigned blocks) {
  auto* logits = a.next<float*>();
  const auto *sums = a.next<const int*>(), *x = a.next<const int*>(), *indices = a.next<const int*>();
  const int vocab = a.next<int>();
  return [=] {
    for (unsigned r = 0; r < blocks; ++r) {
      const int token = indices[r];
      for (int v = 0; v < vocab; ++v) {
        logits[r * static_cast<unsigned>(vocab) + static_cast<unsigned>(v)] =
            x[token] == kPoison ? NAN : -static_cast<float>(std::abs(v - sums[token] % vocab));
      }
    }
  };
}

using tl::DrawnLogprobs, tl::LogitEdit, tl::SamplingSlot;

// A row of logits after the bias, penalties and bans of the sequence's sampling parameters.
std::vector<float> edited(const SamplingSlot& slot, const LogitEdit* edits, int counter, std::vector<float> row) {
  for (const LogitEdit* edit = edits; edit < edits + slot.num_edits; ++edit) {
    float& logit = row[edit->token & LogitEdit::kTokenMask];
    logit += edit->bias;
    if (edit->num_generated >= 0) {
      logit = logit < 0 ? logit * slot.repetition_penalty : logit / slot.repetition_penalty;
      const auto count = static_cast<float>(edit->num_generated);
      if (count > 0) logit -= slot.presence_penalty + slot.frequency_penalty * count;
    }
    const bool stops = (edit->token & LogitEdit::kStop) && counter < slot.min_tokens;
    if (stops || (edit->token & LogitEdit::kBanned)) logit = -INFINITY;
  }
  return row;
}

void forbid(const int* mask, std::vector<float>& row) {
  for (std::size_t token = 0; token < row.size(); ++token) {
    if ((static_cast<unsigned>(mask[token / 32]) >> (token % 32) & 1) == 0) row[token] = -INFINITY;
  }
}

void count_token(SamplingSlot& slot, LogitEdit* edits, int max_edits, int token) {
  for (LogitEdit* edit = edits; edit < edits + slot.num_edits; ++edit) {
    if ((edit->token & LogitEdit::kTokenMask) != static_cast<unsigned>(token)) continue;
    edit->num_generated = std::max(edit->num_generated, 0) + 1;
    return;
  }
  if (slot.num_edits == max_edits) std::abort();  // the host admits no sequence that could reach this number
  edits[slot.num_edits++] = {static_cast<unsigned>(token), 1, 0, 0};
}

void describe(const std::vector<float>& row, int token, int num_top, DrawnLogprobs& out) {
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit));
  const auto logprob = [&](int id) { return static_cast<float>(row[static_cast<unsigned>(id)] - std::log(sum)); };
  std::vector<int> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logprob(a) > logprob(b); });
  out.logprob = logprob(token);
  out.rank = 1 + static_cast<int>(std::count_if(
                     row.begin(), row.end(), [&](float logit) { return logit > row[static_cast<unsigned>(token)]; }));
  std::fill_n(out.tokens, tl::kMaxTopLogprobs, -1);
  std::copy_n(order.begin(), num_top, out.tokens);
  std::transform(out.tokens, out.tokens + num_top, out.logprobs, logprob);
}

Work sample(Arguments& a, unsigned blocks) {
  auto* tokens = a.next<int*>();
  const auto* logits = a.next<const float*>();
  auto* logprobs = a.next<DrawnLogprobs*>();
  const auto *slots = a.next<const int*>(), *counters = a.next<const int*>(), *drafts = a.next<const int*>();
  const auto *mask_rows = a.next<const int*>(), *masks = a.next<const int*>();
  auto* last = a.next<int*>();
  auto* records = a.next<char*>();
  const int max_edits = a.next<int>(), vocab = a.next<int>();
  return [=] {
    for (unsigned first = 0, r = 0; first < blocks; r = ++first) {
      if (slots[r] == tl::kDraftRow) continue;
      tokens[r] = -1;
      if (slots[r] == tl::kNoSlot) continue;
      const auto bytes = sizeof(SamplingSlot) + static_cast<unsigned>(max_edits) * sizeof(LogitEdit);
      auto* slot = reinterpret_cast<SamplingSlot*>(records + static_cast<unsigned>(slots[r]) * bytes);
      auto* edits = reinterpret_cast<LogitEdit*>(slot + 1);
      const bool greedy = counters[r] == tl::kGreedy;
      while (true) {
        const std::vector<float> row(logits + r * static_cast<unsigned>(vocab),
                                     logits + (r + 1) * static_cast<unsigned>(vocab));
        tokens[r] = -1;
        if (std::isnan(row[0])) break;
        const int counter = counters[first] + static_cast<int>(r - first);
        std::vector<float> changed = greedy ? row : edited(*slot, edits, counter, row);
        if (mask_rows[r] != tl::kNoMask) forbid(masks + mask_rows[r] * ((vocab + 31) / 32), changed);
        const int best = static_cast<int>(std::max_element(changed.begin(), changed.end()) - changed.begin());
        if (std::isinf(changed[static_cast<unsigned>(best)])) break;
        if (!greedy && slot->num_logprobs > 0) describe(row, best, slot->num_logprobs - 1, logprobs[r]);
        if (!greedy && slot->counts_tokens) count_token(*slot, edits, max_edits, best);
        const bool ends = std::find(slot->stops, slot->stops + tl::kMaxStops, ~best) != slot->stops + tl::kMaxStops;
        tokens[r] = best;
        last[slots[first]] = ends ? ~best : best;
        if (best != drafts[r]) break;
        ++r;
      }
    }
  };
}

// For tests, keeps its tensor map, which is passed between two integers, and counts the matrix's bytes that are zeros,
// and those that are NaN as E4M3. The alignment of the tensor map keeps the parameters from being packed.
Work probe(Arguments& a, unsigned) {
  const int before = a.next<int>();
  const auto map = a.next<TensorMap>();
  const int after = a.next<int>();
  const auto* address = a.next<const char*>();
  return [=] {
    counted("map_offset") = static_cast<const char*>(map.address) - address;
    counted("map_data_type") = map.data_type;
    counted("map_columns") = map.columns;
    counted("map_rows") = map.rows;
    counted("map_row_bytes") = map.row_bytes;
    counted("map_box_columns") = map.box_columns;
    counted("map_box_rows") = map.box_rows;
    counted("map_swizzle") = map.swizzle;
    counted("map_promotion") = map.promotion;
    counted("map_fill") = map.fill;
    counted("map_neighbours") = 1000 * before + after;
    const auto* bytes = static_cast<const unsigned char*>(map.address);
    const auto* end = bytes + map.rows * map.row_bytes;
    counted("map_zeros") = std::count(bytes, end, 0);
    counted("map_nans") = std::count_if(bytes, end, [](unsigned char byte) { return (byte & 0x7f) == 0x7f; });
  };
}

const std::map<std::string, Kernel>& kernels() {
  static const std::map<std::string, Kernel> all{{"embed", embed},
                                                 {"embed_rows", embed_rows},
                                                 {"embed_bytes", embed_bytes},
                                                 {"pool_sums", pool_sums},
                                                 {"attend", attend},
                                                 {"adapt", adapt},
                                                 {"score", score},
                                                 {"sample", sample},
                                                 {"probe", probe},
                                                 {"embed_of_rank", embed_of_rank},
                                                 {"attend_of_rank", attend_of_rank},
                                                 {"add_up", add_up},
                                                 {"score_of_rank", score_of_rank},
                                                 {"side_by_side", side_by_side},
                                                 {"pack_rows", pack_rows},
                                                 {"unpack_rows", unpack_rows},
                                                 {"compare", compare}};
  return all;
}

const std::map<std::string, std::vector<std::size_t>>& parameter_sizes() {
  static const std::map<std::string, std::vector<std::size_t>> all{{"embed", {8, 8, 8, 8}},
                                                                   {"embed_rows", {8, 8, 8, 8, 8}},
                                                                   {"embed_bytes", {8, 8, 8, 8, 8}},
                                                                   {"pool_sums", {8, 8, 8}},
                                                                   {"attend", {8, 8, 8, 8, 8, 8, 4, 4}},
                                                                   {"adapt", {8, 8, 8, 8, 8, 8, 4, 4, 4}},
                                                                   {"score", {8, 8, 8, 8, 4}},
                                                                   {"sample", {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4}},
                                                                   {"probe", {4, sizeof(TensorMap), 4, 8}},
                                                                   {"embed_of_rank", {8, 8, 8, 8, 8}},
                                                                   {"attend_of_rank", {8, 8, 8, 8, 8, 8, 4, 4, 8}},
                                                                   {"add_up", {8, 8, 4}},
                                                                   {"score_of_rank", {8, 8, 8, 8, 4, 4, 8}},
                                                                   {"side_by_side", {8, 8, 4, 4}},
                                                                   {"pack_rows", {8, 8, 8}},
                                                                   {"unpack_rows", {8, 8, 8}},
                                                                   {"compare", {8, 8}}};
  return all;
}

int push_copy(void* to, const void* from, std::size_t bytes, Stream* stream, const char* kind) {
  count(kind);
  count(std::string(kind) + "_bytes", static_cast<std::int64_t>(bytes));
  stream->push([=] { std::memcpy(to, from, bytes); });
  return 0;
}

struct Hold {
  std::mutex mutex;
  std::condition_variable changed;
  int held = 0;  // 1: all streams; 2: all but those of greater priority

  bool holds(const Stream* stream) const { return held == 1 || (held == 2 && stream->priority == 0); }
};

Hold& hold() {
  static Hold hold;
  return hold;
}

// 89 is compute capability 8.9.
int fake_capability() { return number_from("FAKE_CAPABILITY", 90); }
std::map<const Kernel*, int>& allowed_shared_bytes() {
  static std::map<const Kernel*, int> allowed;
  return allowed;
}
int max_shared_bytes() { return fake_capability() == 89 ? 99 << 10 : 227 << 10; }

// Returns whether the stream has reached the event. An event that was never recorded counts as reached.
bool run_until_reached(Event* event, std::int64_t number) {
  const auto reached = [=] { return event->num_reached >= number; };
  if (!reached()) run_until(event->stream, reached);
  return reached();
}

// Waits until there is room for one more kernel on a stream, if that is limited; meanwhile other streams run, too.
// Returns false if there is none: the stream waits for work on another stream that nobody launches.
bool has_room(Stream* stream) {
  constexpr std::chrono::seconds kNever{20};
  const int most = number_from("FAKE_MAX_PENDING", 0);
  std::unique_lock lock(fake::device_mutex());
  const auto has_one = [=] { return most == 0 || stream->num_pending < most; };
  const auto make_one = [&] {
    run_until(stream, has_one);
    if (has_one()) return true;
    for (Stream* other : std::vector(fake::streams())) run_until(other, has_one);
    return run_until(stream, has_one), has_one();
  };
  if (!fake::pushed().wait_for(lock, kNever, make_one)) return false;
  ++stream->num_pending;
  return true;
}

// Counts a launch on the current GPU. Returns whether the GPU refuses it, as it does after a number of launches.
bool refuses_launch() {
  const int device = fake::current()->device;
  const std::string name = "launches_of_" + std::to_string(device);
  const Lock lock(fake::device_mutex());
  const bool is_full = counted(name) >= number_from("FAKE_MAX_LAUNCHES", 0);
  if (device == number_from("FAKE_REFUSING_GPU", -1) && is_full) return true;
  return ++counted(name), false;
}

}  // namespace

extern "C" {

// Returns, for tests, how often a function was called.
std::int64_t fake_count(const char* what) {
  const Lock lock(fake::device_mutex());
  return counted(what);
}
// Runs all streams as far as possible, and returns how many wait for something that never happens.
std::int64_t fake_num_waiting() {
  const Lock lock(fake::device_mutex());
  const auto waits = [](Stream* stream) {
    run_until(stream, [] { return false; });
    return !stream->queue.empty();
  };
  std::for_each(fake::streams().begin(), fake::streams().end(), waits);  // some wait for streams after them
  return std::count_if(fake::streams().begin(), fake::streams().end(), waits);
}
// Lets a function of virtual memory fail when it is called for the `in`th time from now on. Returns in how many calls
// the last such failure would have come; 0 or less if it has.
std::int64_t fake_fail(const char* function, int in) {
  const Lock lock(fake::device_mutex());
  return std::exchange(failure(), {function, in}).in;
}
std::int64_t fake_allocated() { return static_cast<std::int64_t>(allocated()); }

// While `held` is 1, waits for the device do not return: a test may submit any number of requests meanwhile. While it
// is 2, streams of greater priority go on.
void fake_hold(int held) {
  {
    const std::lock_guard lock(hold().mutex);
    hold().held = held;
  }
  hold().changed.notify_all();
}
// Runs `count` pieces of work (kernels, copies, records of events) of the first stream that has some and no priority.
void fake_run(int count) {
  const Lock lock(fake::device_mutex());
  const auto is_meant = [](const Stream* stream) { return stream->priority == 0 && !stream->queue.empty(); };
  const auto found = std::find_if(fake::streams().begin(), fake::streams().end(), is_meant);
  if (found != fake::streams().end()) run_until(*found, [&] { return count-- == 0; });
}

// For other fake libraries: a collective of several ranks' streams; the last rank to arrive computes it.
Collective* fake_new_collective() { return new Collective; }
int fake_join(Stream* stream, Collective* collective, int rank, int count, void* own, Collective::Together together) {
  if (stream->context != fake::current()) return kInvalidHandle;
  return stream->push([=] { return collective->come(rank, count, own, together); }), 0;
}
// Ends all waits in the collective.
void fake_abort(Collective* collective) {
  const Lock lock(fake::device_mutex());
  collective->aborted = true;
}

int cuInit(unsigned) { return 0; }
int cuDriverGetVersion(int* version) { return *version = 13000, 0; }
int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_FAKE", 0; }
int cuGetErrorString(int, const char** text) { return *text = "the fake driver refuses", 0; }
int cuDeviceGetCount(int* count) { return *count = std::getenv("FAKE_NO_GPU") ? 0 : number_from("FAKE_GPUS", 1), 0; }
int cuDeviceGet(int* device, int index) { return *device = index, 0; }
int cuDeviceGetName(char* name, int size, int) {
  return std::strncpy(name, "Fake GPU", static_cast<std::size_t>(size)), 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) { return *bytes = kTotalBytes, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const int capability = fake_capability();
  const std::map<int, int> values{
      {16, 4}, {75, capability / 10}, {76, capability % 10}, {97, max_shared_bytes()}, {102, 1}, {103, 1}};
  return *value = values.at(attribute), 0;
}
int cuDevicePrimaryCtxRetain(Context** context, int device) {
  static std::map<int, Context> contexts;
  const Lock lock(fake::device_mutex());
  return *context = &(contexts[device] = {device}), 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxSetCurrent(Context* context) {
  if (std::getenv("FAKE_DEAD") || (context && context->device == number_from("FAKE_DEAD_GPU", -1)))
    return kLaunchFailed;
  return fake::current() = context, 0;
}
int cuDeviceCanAccessPeer(int* can, int, int) { return *can = number_from("FAKE_PEER_ACCESS", 0), 0; }
int cuCtxEnablePeerAccess(Context* peer, unsigned) {
  if (number_from("FAKE_PEER_ACCESS", 0) == 0) return kNoPeerAccess;
  count("access_of_" + std::to_string(fake::current()->device) + "_to_" + std::to_string(peer->device));
  return peer == fake::current() ? kInvalidContext : 0;
}
int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return *free = kTotalBytes - allocated(), *total = kTotalBytes, 0;
}
int cuMemAlloc_v2(void** pointer, std::size_t bytes) {
  const Lock lock(fake::device_mutex());
  if (bytes > kTotalBytes - allocated()) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*pointer, 0xff, bytes);
  allocations()[*pointer] = bytes;
  allocated() += bytes;
  return 0;
}
int cuMemFree_v2(void* pointer) {
  const Lock lock(fake::device_mutex());
  allocated() -= allocations()[pointer];
  allocations().erase(pointer);
  collectives().erase(pointer);
  return std::free(pointer), 0;
}
// Virtual memory is that of the host, with pages of 4 KiB: who touches addresses that are not mapped dies.
int cuMemGetAllocationGranularity(std::size_t* bytes, const void*, int) { return *bytes = kPage, 0; }
int cuMemAddressReserve(char** address, std::size_t bytes, std::size_t, void*, unsigned long long) {
  if (fails("cuMemAddressReserve")) return kOutOfMemory;
  void* found = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *address = static_cast<char*>(found), found == MAP_FAILED ? kOutOfMemory : 0;
}
int cuMemAddressFree(char* address, std::size_t bytes) { return ::munmap(address, bytes) == 0 ? 0 : kInvalidValue; }
int cuMemCreate(std::uint64_t* memory, std::size_t bytes, const void*, unsigned long long) {
  const Lock lock(fake::device_mutex());
  if (fails("cuMemCreate") || bytes > kTotalBytes - allocated()) return kOutOfMemory;
  const int file = ::memfd_create("device memory", 0);
  if (file < 0 || ::ftruncate(file, static_cast<::off_t>(bytes)) != 0) std::abort();
  physical()[static_cast<std::uint64_t>(file)] = {bytes, nullptr};
  allocated() += bytes;
  return *memory = static_cast<std::uint64_t>(file), 0;
}
int cuMemRelease(std::uint64_t memory) {
  const Lock lock(fake::device_mutex());
  const auto found = physical().find(memory);
  if (found == physical().end() || found->second.address != nullptr) return kInvalidValue;
  allocated() -= found->second.bytes;
  physical().erase(found);
  return ::close(static_cast<int>(memory)), 0;
}
int cuMemMap(char* address, std::size_t bytes, std::size_t, std::uint64_t memory, unsigned long long) {
  const Lock lock(fake::device_mutex());
  if (fails("cuMemMap")) return kLaunchFailed;
  const auto found = physical().find(memory);
  if (found == physical().end() || found->second.bytes != bytes || found->second.address != nullptr) std::abort();
  const auto is_here = [&](const auto& other) { return other.second.address == address; };
  if (std::any_of(physical().begin(), physical().end(), is_here)) std::abort();  // nothing is mapped twice
  found->second.address = address;
  void* mapped = ::mmap(address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, static_cast<int>(memory), 0);
  return mapped == address ? 0 : kInvalidValue;
}
int cuMemSetAccess(char* address, std::size_t bytes, const Access* access, std::size_t num_devices) {
  if (fails("cuMemSetAccess")) return kLaunchFailed;
  const Lock lock(fake::device_mutex());
  for (std::size_t i = 0; i < num_devices; ++i) count("opened_to_" + std::to_string(access[i].device));
  return ::mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0 ? 0 : kInvalidValue;
}
int cuMemUnmap(char* address, std::size_t bytes) {
  const Lock lock(fake::device_mutex());
  if (fails("cuMemUnmap")) return kLaunchFailed;
  count("unmapped");
  for (auto& [memory, place] : physical()) {
    if (place.address != address || place.bytes != bytes) continue;
    place.address = nullptr;
    ::mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return 0;
  }
  return kInvalidValue;
}
int cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  const char* most = std::getenv("FAKE_MAX_PINNED");
  if (bytes > (most == nullptr ? kTotalBytes : std::strtoull(most, nullptr, 10))) return kOutOfMemory;
  *pointer = std::malloc(bytes);
  std::memset(*pointer, 0xff, bytes);
  return 0;
}
int cuMemFreeHost(void* pointer) { return std::free(pointer), 0; }
int cuMemcpyHtoDAsync_v2(void* to, const void* from, std::size_t bytes, Stream* stream) {
  return push_copy(to, from, bytes, stream, "to_device");
}
int cuMemcpyDtoHAsync_v2(void* to, const void* from, std::size_t bytes, Stream* stream) {
  return push_copy(to, from, bytes, stream, "to_host");
}
int cuMemcpyDtoDAsync_v2(void* to, const void* from, std::size_t bytes, Stream* stream) {
  return push_copy(to, from, bytes, stream, "on_device");
}
int cuMemcpy3DAsync_v2(const Copy3d* copy, Stream* stream) {
  for (const CopyEnd& end : {copy->from, copy->to}) {
    if (copy->width > end.pitch || copy->height > end.height) return kInvalidValue;
    if ((end.memory_type == kHostMemory ? end.host : end.device) == nullptr) return kInvalidValue;
  }
  count("slices");
  stream->push([copy = *copy] {
    for (std::size_t z = 0; z < copy.depth; ++z) {
      for (std::size_t y = 0; y < copy.height; ++y) std::memcpy(copy.to.row(y, z), copy.from.row(y, z), copy.width);
    }
  });
  return 0;
}
int cuMemsetD8Async(void* to, unsigned char value, std::size_t count, Stream* stream) {
  return stream->push([=] { std::memset(to, value, count); }), 0;
}
int cuMemsetD32Async(unsigned* to, unsigned value, std::size_t count, Stream* stream) {
  return stream->push([=] { std::fill_n(to, count, value); }), 0;
}
int cuModuleLoadData(void** module, const void* image) {
  return *module = new std::string(static_cast<const char*>(image)), 0;
}
int cuModuleUnload(void* module) { return delete static_cast<std::string*>(module), 0; }
// A module's image is the name of the one kernel that it holds.
int cuModuleGetFunction(const Kernel** function, void* module, const char* name) {
  if (*static_cast<std::string*>(module) != name || !kernels().contains(name)) return kInvalidValue;
  return *function = &kernels().at(name), 0;
}
int cuFuncGetParamInfo(const Kernel* function, std::size_t index, std::size_t* offset, std::size_t* size) {
  const auto is_this = [function](const auto& entry) { return &entry.second == function; };
  const auto& sizes = parameter_sizes().at(std::find_if(kernels().begin(), kernels().end(), is_this)->first);
  if (index >= sizes.size()) return kInvalidValue;
  *offset = 0;
  for (std::size_t i = 0; i <= index; ++i) {
    *size = sizes[i];
    *offset = (*offset + std::min<std::size_t>(*size, 64) - 1) / std::min<std::size_t>(*size, 64) *
              std::min<std::size_t>(*size, 64);
    if (i < index) *offset += *size;
  }
  return 0;
}
int cuFuncSetAttribute(const Kernel* function, int, int value) {
  if (value > max_shared_bytes()) return kInvalidValue;
  return allowed_shared_bytes()[function] = value, 0;
}
int cuTensorMapEncodeTiled(TensorMap* map, int data_type, unsigned rank, const void* address,
                           const std::uint64_t* extents, const std::uint64_t* strides, const unsigned* box,
                           const unsigned* steps, int interleave, int swizzle, int promotion, int fill) {
  count("maps");
  if (rank != 2 || steps[0] != 1 || steps[1] != 1 || interleave != 0) return kInvalidValue;
  const auto number = [](auto value) { return static_cast<std::int64_t>(value); };
  *map = {address,
          data_type,
          number(extents[0]),
          number(extents[1]),
          number(strides[0]),
          number(box[0]),
          number(box[1]),
          swizzle,
          promotion,
          fill};
  return 0;
}
int cuLaunchKernelEx(const LaunchConfig* config, const Kernel* function, void** each, void** extra) {
  if ((each == nullptr) == (extra == nullptr)) return kInvalidValue;
  if (config->stream->context != fake::current()) return kInvalidHandle;
  if (refuses_launch()) return kLaunchFailed;
  const bool is_captured = config->stream->capture != nullptr;
  if (!is_captured && !has_room(config->stream)) return kLaunchFailed;
  const Lock lock(fake::device_mutex());
  if (static_cast<int>(config->shared_bytes) > std::max(48 << 10, allowed_shared_bytes()[function])) {
    return kInvalidValue;
  }
  Arguments arguments(each, extra);
  Work work = (*function)(arguments, config->grid[0]);
  if (!arguments.complete() || config->grid[0] * config->grid[1] * config->grid[2] == 0) return kOutOfResources;
  count(is_captured ? "captured" : "launched");
  const auto counted = [work = std::move(work), stream = config->stream, is_captured] {
    if (!work()) return false;
    if (!is_captured) --stream->num_pending;
    count("executed");
    return true;
  };
  return config->stream->push(counted), 0;
}
int cuStreamCreateWithPriority(Stream** stream, unsigned, int priority) {
  const Lock lock(fake::device_mutex());
  fake::streams().push_back(*stream = new Stream);
  return (*stream)->priority = priority, 0;
}
int cuStreamCreate(Stream** stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
int cuStreamDestroy_v2(Stream* stream) {
  const Lock lock(fake::device_mutex());
  std::erase(fake::streams(), stream);
  return delete stream, 0;
}
// A wait that never ends is an error here, so that tests end.
int cuStreamSynchronize(Stream* stream) {
  return fake::wait_until(stream, [stream] { return stream->queue.empty(); }) ? 0 : kLaunchFailed;
}
int cuStreamQuery(Stream* stream) { return stream->queue.empty() ? 0 : kNotReady; }
int cuStreamBeginCapture_v2(Stream* stream, int) { return stream->capture = new Graph, 0; }
int cuStreamEndCapture(Stream* stream, Graph** graph) {
  *graph = stream->capture;
  return stream->capture = nullptr, 0;
}
int cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* argument) {
  return stream->push([=] { function(argument); }), 0;
}
int cuEventCreate(Event** event, unsigned) { return *event = new Event, 0; }
int cuEventDestroy_v2(Event*) { return 0; }  // a stream may still wait for it
int cuEventRecord(Event* event, Stream* stream) {
  event->stream = stream;
  const Lock lock(fake::device_mutex());
  const auto reach = [event, number = ++event->num_recorded] {
    event->num_reached = number;
    event->num_kernels = counted("executed");
  };
  return stream->push(reach), 0;
}
int cuEventSynchronize(Event* event) {
  {
    std::unique_lock lock(hold().mutex);
    hold().changed.wait(lock, [event] { return !hold().holds(event->stream); });
  }
  if (event->num_recorded == 0) return 0;
  const auto reached = [event, number = event->num_recorded] { return event->num_reached >= number; };
  return fake::wait_until(event->stream, reached) ? 0 : kLaunchFailed;
}
int cuEventQuery(Event* event) {
  {
    const std::lock_guard lock(hold().mutex);
    if (hold().holds(event->stream)) return kNotReady;
  }
  return run_until_reached(event, event->num_recorded) ? 0 : kNotReady;
}
int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
  count("waits");
  // If an event is recorded again meanwhile, a wait still refers to the state recorded when this was called.
  const Lock lock(fake::device_mutex());
  return stream->push([event, number = event->num_recorded] { return run_until_reached(event, number); }), 0;
}
// Copies take almost no time, so that requests are swapped rather than recomputed.
int cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
  return *milliseconds = end->num_kernels > start->num_kernels ? 0.5f : 1e-3f, 0;
}
int cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, unsigned long long) {
  const Lock lock(fake::device_mutex());
  const char* most = std::getenv("FAKE_MAX_GRAPHS");
  if (most != nullptr && counted("instantiated") >= std::atoi(most)) return kOutOfMemory;
  count("instantiated");
  return *exec = new Graph(*graph), 0;
}
int cuGraphDestroy(Graph* graph) { return delete graph, 0; }
int cuGraphExecDestroy(Graph* exec) { return count("instantiated", -1), delete exec, 0; }
int cuGraphLaunch(Graph* exec, Stream* stream) {
  if (stream->context != fake::current()) return kInvalidHandle;
  if (refuses_launch()) return kLaunchFailed;
  count("graphs");
  thread_local bool is_counted = false;
  if (!std::exchange(is_counted, true)) count("graph_threads");
  for (const Work& work : *exec) stream->push(work);
  return 0;
}

}  // extern "C"
