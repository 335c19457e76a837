// Which page of tokens follows which: the chains of the prefix index, without their blocks.
//
// A *node* is a page of `page_tokens` tokens behind its parent; the root of every chain stands for
// a *space*, an opaque byte string. So a node means: these tokens, all of them, in this space.
// Chains of different spaces have no node in common, whatever their tokens.
//
// A child is found by the XXH3-128 of its parent's hash and its tokens. The hash is an index only:
// a node is taken for a child when its parent (id and birth) and all its tokens agree, and a space
// when all its bytes do, so equal hashes cost time but never give a wrong node.
//
// Ids are used again, births never are: the two together name a node for good. Nothing depends on
// addresses or on the order of a hash table. Engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/mutant.h"

namespace pagezip {

struct PageHash {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const PageHash&, const PageHash&) = default;
};

/// XXH3-128 of the parent's hash and a page's tokens. REQUIRES: at most 64 tokens.
PageHash hash_page(const PageHash& parent, std::span<const TokenId> tokens);

class PrefixTree {
 public:
  using NodeId = uint32_t;
  using Hasher = PageHash (*)(const PageHash& parent, std::span<const TokenId> tokens);
  static constexpr NodeId kNone = UINT32_MAX;

  /// Tests pass a `hasher` that collides.
  explicit PrefixTree(int page_tokens, Hasher hasher = hash_page);

  /// The root of a space, or kNone.
  NodeId root(std::string_view space) const;
  /// REQUIRES: the space has no root.
  NodeId add_root(std::string_view space);
  /// The child of `node` with these tokens, or kNone. tokens: [page_tokens]. Fast where it is the
  /// child that was added or made recent last: then nothing is hashed.
  NodeId child(NodeId node, const TokenId* tokens) const;
  /// REQUIRES: there is no such child.
  NodeId add_child(NodeId node, const TokenId* tokens);
  /// Makes a node the child that child() tries first. REQUIRES: not a root.
  void make_recent(NodeId node);
  /// Removes a node; a root with its space. REQUIRES: it has no children.
  void remove(NodeId node);
  /// Removes all nodes. Births go on, so old (id, birth) pairs stay dead.
  void clear();

  /// Whether `node` is still the node that had this birth. Any values are allowed.
  bool is_alive(NodeId node, uint64_t birth) const {
    return node < nodes_.size() && birth != 0 &&
           (nodes_[node].birth == birth || MUTANT(kStaleHash));
  }
  // All REQUIRE: the node is alive.
  uint64_t birth(NodeId node) const { return nodes_[node].birth; }
  NodeId parent(NodeId node) const { return nodes_[node].parent; }  // kNone for a root
  NodeId root_of(NodeId node) const { return nodes_[node].root; }
  /// Pages from the root to the end of the node; 0 for a root.
  int64_t pages(NodeId node) const { return nodes_[node].pages; }
  bool is_root(NodeId node) const { return nodes_[node].pages == 0; }
  bool is_leaf(NodeId node) const { return nodes_[node].first_child == kNone; }
  bool has_one_child(NodeId node) const;
  /// A node without children at or below `node`.
  NodeId leaf_below(NodeId node) const;

  /// Live nodes, roots included, and how many of them are roots.
  int64_t size() const { return static_cast<int64_t>(nodes_.size() - unused_.size()); }
  int64_t spaces() const { return static_cast<int64_t>(spaces_.size()); }
  /// All ids are below this. Dead ones have birth 0.
  NodeId ids_end() const { return static_cast<NodeId>(nodes_.size()); }

  /// Recomputes every link and hash. Returns the first violation, or "".
  std::string audit() const;

 private:
  struct Node {
    PageHash hash;
    uint64_t birth = 0;         // 0: unused
    uint64_t parent_birth = 0;  // of `parent` when this node was added
    int64_t pages = 0;
    NodeId parent = kNone;
    NodeId root = kNone;
    NodeId first_child = kNone;  // the most recent one
    NodeId next_sibling = kNone;
    NodeId previous_sibling = kNone;
    NodeId next_in_bucket = kNone;
  };

  std::span<const TokenId> tokens_of(NodeId node) const;
  NodeId add(NodeId parent, const PageHash& hash);
  void link_sibling(NodeId node);
  void unlink_sibling(NodeId node);
  // The place that names the first node of a hash's bucket.
  NodeId& bucket(const PageHash& hash) { return buckets_[hash.low & (buckets_.size() - 1)]; }
  void grow_buckets();
  std::string audit_node(NodeId node) const;

  size_t page_tokens_;
  Hasher hasher_;
  uint64_t births_ = 0;
  std::vector<Node> nodes_;      // [ids]
  std::vector<TokenId> tokens_;  // [ids, page_tokens]
  std::vector<NodeId> unused_;   // LIFO
  std::vector<NodeId> buckets_;  // [a power of two], of all nodes but roots
  std::map<std::string, NodeId, std::less<>> spaces_;
  std::map<NodeId, std::string_view> names_;  // of roots; views of spaces_
};

}  // namespace pagezip
