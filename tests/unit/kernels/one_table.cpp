// One of the two launches of one_table.cu, block after block. OTHERS and MORE are what a kernel takes beside the rest.
int main(int, char** names) {
  const int *meta = read_array<int>("meta"), *sizes = read_array<int>("sizes");
  const int V = meta[0], users = sizes[0], parts = sizes[1], all = meta[2], blocks = (V + 127) / 128;
  const bf *outputs = read_array<bf>("outputs"), *table = read_array<bf>("table");
#if BIASED
  const float* bias = read_array<float>("bias");
  std::vector<float> of_bias((size_t)users * V);
#endif
  const size_t tokens = (size_t)users * all * parts * T;
  std::vector<float> most(tokens), total(tokens), mean(tokens * E), gradient((size_t)users * V * E);
  if (sizes[2] == 1) {
    gridDim = {users * all, parts, 1};
    for (int y = 0; y < gridDim.y; y++)
      for (int x = 0; x < gridDim.x; x++) {
        blockIdx = {x, y, 0};
        kernel = [&] { one_scores_(outputs, table, meta, OTHERS most.data(), total.data(), mean.data()); };
        run_block();
      }
    write_array("most", most.data(), most.size()); write_array("total", total.data(), total.size());
    write_array("mean", mean.data(), mean.size());
  } else {
    const float* about = read_array<float>("about");
    gridDim = {blocks, users, 1};
    for (int y = 0; y < gridDim.y; y++)
      for (int x = 0; x < gridDim.x; x++) {
        blockIdx = {x, y, 0};
        kernel = [&] { one_gradient_(outputs, table, meta, about, OTHERS gradient.data() MORE); };
        run_block();
      }
    write_array("gradient", gradient.data(), gradient.size());
#if BIASED
    write_array("of_bias", of_bias.data(), of_bias.size());
#endif
  }
}
