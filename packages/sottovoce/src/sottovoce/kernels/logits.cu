// What table.cu and one_table.cu share: how rows of a table and outputs of a step lie in shared memory, their logits, and the sums of both
// passes. T (tokens of a step, a multiple of 16), E (numbers in a row, a multiple of 4), BIASED and COMPARED are defined before this text.
#define LOWEST -1e30f
#define ROWS 64                                // of the table for each warpgroup at a time
#define GROUPS ((E + 7) / 8)                   // of 8 columns
#define KS ((E + 15) / 16)                     // steps of a sum over columns
#define WIDE (64 * ((E + 63) / 64))            // columns where they are the 64 rows of a product
#define BLOCKS (WIDE / 64)
#define WHOLE (BLOCKS / 2)                     // of these for each of two warpgroups; where one is left, each has half of the tokens of it
#define HALF (BLOCKS % 2)
#define CHUNKS ((E + 255) / 256)
#define CHUNK (8 * ((GROUPS + CHUNKS - 1) / CHUNKS))  // columns of one product
#define EC (16 * KS)                           // columns of these steps: those beyond E are 0
#define OUT (CHUNKS * CHUNK > EC ? CHUNKS * CHUNK : EC)  // columns of outputs that are also multiplied by errors

// A thread of a block: two warpgroups (teams) multiply, and others may help them. Which numbers of a product it has follows from its warp, g and q.
struct Thread {
  int tid = threadIdx.x, lane = tid & 31, g = lane >> 2, q = lane & 3, team = tid >> 7, warp = (tid >> 5) & 3;
};

// Code for tables with biases, and for models that are compared with another one.
#if BIASED
#define IF_BIASED(...) __VA_ARGS__
#else
#define IF_BIASED(...)
#endif
#if COMPARED
#define IF_COMPARED(...) __VA_ARGS__
#else
#define IF_COMPARED(...)
#endif

// A matrix in pieces, those of the same 8 rows one after the other: where a number lies.
template <int COLUMNS> __device__ __forceinline__ int in_pieces(int r, int c) {
  return (r >> 3) * (COLUMNS * 16) + (c >> 3) * 128 + (r & 7) * 16 + (c & 7) * 2;
}
// The operand that begins here.
template <int COLUMNS> __device__ __forceinline__ uint64_t by_rows(const unsigned char* p) { return operand(p, 128, COLUMNS * 16); }
template <int COLUMNS> __device__ __forceinline__ uint64_t by_columns(const unsigned char* p) { return operand(p, COLUMNS * 16, 128); }

// Floats in the order of integers, for the largest by atomicMax.
__device__ __forceinline__ int ordered(float x) { int b = __float_as_int(x); return b < 0 ? b ^ 0x7fffffff : b; }
__device__ __forceinline__ float unordered(int b) { return __int_as_float(b < 0 ? b ^ 0x7fffffff : b); }

// [T, E] into pieces; columns beyond E are 0.
template <int COLUMNS> __device__ __forceinline__ void load_outputs(unsigned char* to, const bf* from) {
  for (int i = threadIdx.x; i < T * (COLUMNS / 4); i += 256) {
    const int r = i / (COLUMNS / 4), c = 4 * (i % (COLUMNS / 4));
    *(uint2*)(to + in_pieces<COLUMNS>(r, c)) = c < E ? *(const uint2*)(from + r * E + c) : make_uint2(0, 0);
  }
}

// Logits [64 rows, T] of a warpgroup. A thread has rows 16 * warp + g and 8 more, and tokens 8 j + 2 q and 1 more:
// s[4 j + 2 * (which row) + (which token)].
template <int COLUMNS, int OF_OUTPUTS>
__device__ __forceinline__ void make_logits(const unsigned char* es, const unsigned char* os, float (&s)[T / 2]) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < KS; k++) wgmma<T, 0, 0>(s, by_rows<COLUMNS>(es + 256 * k), by_rows<OF_OUTPUTS>(os + 256 * k), k > 0);
  wgmma_commit();
  wgmma_wait(s);
}

// ------------------------------------------------------------------------------------------------- sums of the first pass
// Adds biases to logits and subtracts the offset of each token. A thread has rows r and r + 8; there are n. The offset begins as the largest
// logit of the token. Where a later logit is more than 32 above, the offset is raised to it: `rise` says by how much. Was any raised?
__device__ __forceinline__ bool subtract_offset(
    const Thread& me, float (&s)[T / 2], const float (&shift)[2], int r, int n, bool first, float (&offset)[T], float (&rise)[T], int (&highest)[T]) {
  bool beyond = first;
#pragma unroll
  for (int j = 0; j < T / 8; j++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float before = offset[8 * j + 2 * me.q + i];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float& x = s[4 * j + 2 * h + i];
        x = r + 8 * h < n ? x + shift[h] - before : LOWEST;
        beyond |= x > 32;
      }
    }
  if (!pair_or(beyond)) return false;
#pragma unroll
  for (int j = 0; j < T / 8; j++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float x = fmaxf(s[4 * j + i], s[4 * j + 2 + i]);
      x = fmaxf(x, __shfl_xor_sync(~0u, x, 4)); x = fmaxf(x, __shfl_xor_sync(~0u, x, 8)); x = fmaxf(x, __shfl_xor_sync(~0u, x, 16));
      if (me.g == 0) atomicMax(&highest[8 * j + 2 * me.q + i], ordered(x));
    }
  pair_sync();
  for (int i = me.tid; i < T; i += 256) {
    const float high = unordered(highest[i]);
    rise[i] = first ? high : fmaxf(high, 0.f);
    offset[i] += rise[i]; highest[i] = ordered(LOWEST);
  }
  pair_sync();
  return true;
}

// What a warpgroup adds up: rows weighted by 2^logit, [64 columns of the table, T] for each block of columns. A thread has columns
// 16 * warp + g and 8 more, and tokens 8 j + 2 q and 1 more: [4 j + 2 * (which column) + (which token)].
struct Sums {
  float whole[WHOLE ? WHOLE : 1][T / 2], half[HALF ? T / 4 : 1];
};

// Adds 2^logit to the totals, and writes it to `ps`. Where an offset was raised, the sums so far are scaled down first.
__device__ __forceinline__ void add_to_totals(
    const Thread& me, float (&s)[T / 2], unsigned char* ps, bool first, bool raised, const float (&rise)[T], float (&total)[T / 4], Sums& sums) {
  if (raised) {
#pragma unroll
    for (int j = 0; j < T / 8; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float up = rise[8 * j + 2 * me.q + i], shrink = first ? 0 : ex2(-up);
        s[4 * j + i] -= up; s[4 * j + 2 + i] -= up;
        total[2 * j + i] *= shrink;
#pragma unroll
        for (int m = 0; m < WHOLE; m++) { sums.whole[m][4 * j + i] *= shrink; sums.whole[m][4 * j + 2 + i] *= shrink; }
      }
#pragma unroll
    for (int j = 0; j < HALF * T / 16; j++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float shrink = first ? 0 : ex2(-rise[T / 2 * me.team + 8 * j + 2 * me.q + i]);
        sums.half[4 * j + i] *= shrink; sums.half[4 * j + 2 + i] *= shrink;
      }
  }
#pragma unroll
  for (int j = 0; j < T / 8; j++) {
    const float a = ex2(s[4 * j]), b = ex2(s[4 * j + 1]), c = ex2(s[4 * j + 2]), d = ex2(s[4 * j + 3]);
    const int row = ROWS * me.team + (16 * me.warp + me.g);
    total[2 * j] += a + c; total[2 * j + 1] += b + d;
    *(uint32_t*)(ps + in_pieces<T>(row, 8 * j + 2 * me.q)) = pack(a, b);
    *(uint32_t*)(ps + in_pieces<T>(row + 8, 8 * j + 2 * me.q)) = pack(c, d);
  }
  fence_async();
  pair_sync();
}

// Adds 128 rows in pieces, weighted by `ps`, and to `other` weighted by `ps2`, those of the other model.
template <int COLUMNS> __device__ __forceinline__ void add_rows(
    const Thread& me, const unsigned char* es, bool first, const unsigned char* ps, Sums& sums IF_COMPARED(, const unsigned char* ps2, Sums& other)) {
  auto add = [&](const unsigned char* chances, Sums& to) {
#pragma unroll
    for (int k = 0; k < 2 * ROWS / 16; k++) {
      const unsigned char *rows = es + 2 * k * COLUMNS * 16, *weights = chances + 2 * k * T * 16;
#pragma unroll
      for (int m = 0; m < WHOLE; m++)
        wgmma<T, 1, 1>(to.whole[m], by_columns<COLUMNS>(rows + (m + WHOLE * me.team) * 8 * 128), by_columns<T>(weights), !first || k > 0);
#if HALF
      wgmma<T / 2, 1, 1>(to.half, by_columns<COLUMNS>(rows + 2 * WHOLE * 8 * 128), by_columns<T>(weights + T / 16 * 128 * me.team), !first || k > 0);
#endif
    }
  };
  wgmma_fence();
  add(ps, sums);
  IF_COMPARED(add(ps2, other);)
  wgmma_commit();
  wgmma_wait<0>();
  auto done = [&](Sums& of) {
#pragma unroll
    for (int m = 0; m < WHOLE; m++) pin(of.whole[m]);
    if (HALF) pin(of.half);
  };
  done(sums);
  IF_COMPARED(done(other);)
}

// Writes the offsets and the totals of a part of the table. `sums` is shared memory that is free: [8 warps][T].
__device__ __forceinline__ void put_totals(
    const Thread& me, float* sums, const float (&offset)[T], const float (&total)[T / 4], size_t place, float* most_out, float* total_out) {
#pragma unroll
  for (int i = 0; i < T / 4; i++) {
    float x = total[i];
    x += __shfl_xor_sync(~0u, x, 4); x += __shfl_xor_sync(~0u, x, 8); x += __shfl_xor_sync(~0u, x, 16);
    if (me.g == 0) sums[(me.tid >> 5) * T + 8 * (i >> 1) + 2 * me.q + (i & 1)] = x;
  }
  pair_sync();
  for (int i = me.tid; i < T; i += 256) {
    float x = 0;
    for (int w = 0; w < 8; w++) x += sums[w * T + i];
    most_out[place * T + i] = offset[i]; total_out[place * T + i] = x;
  }
}

// Calls `put` for each sum of rows that a thread has, with its column and its token.
template <typename Put> __device__ __forceinline__ void each_sum(const Thread& me, const Sums& sums, Put put) {
  const int column = 16 * me.warp + me.g;
#pragma unroll
  for (int j = 0; j < T / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int token = 8 * j + 2 * me.q + (i & 1);
#pragma unroll
      for (int m = 0; m < WHOLE; m++) put(sums.whole[m][4 * j + i], 64 * (m + WHOLE * me.team) + column + 8 * (i >> 1), token);
      if (HALF && j < T / 16) put(sums.half[HALF && j < T / 16 ? 4 * j + i : 0], 128 * WHOLE + column + 8 * (i >> 1), T / 2 * me.team + token);
    }
}

// ------------------------------------------------------------------------------------------------- sums of the second pass
// The gradient [64 rows, columns] of a warpgroup: the sum runs over the tokens, whose errors are in registers already.
template <int OF_OUTPUTS>
__device__ __forceinline__ void multiply_errors(const uint32_t (&errors)[T / 4], const unsigned char* os, bool add, float (&c)[CHUNKS][CHUNK / 2]) {
  wgmma_fence();
#pragma unroll
  for (int m = 0; m < CHUNKS; m++)
#pragma unroll
    for (int k = 0; k < T / 16; k++) {
      const uint32_t a[4] = {errors[4 * k], errors[4 * k + 1], errors[4 * k + 2], errors[4 * k + 3]};
      wgmma_regs<CHUNK, 1>(c[m], a, by_columns<OF_OUTPUTS>(os + 2 * k * OF_OUTPUTS * 16 + m * CHUNK / 8 * 128), add || k > 0);
    }
  wgmma_commit();
#pragma unroll
  for (int m = 0; m < CHUNKS; m++) wgmma_wait(c[m]);
}
