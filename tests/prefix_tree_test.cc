#include "paging/prefix_tree.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pagezip {
namespace {

constexpr int kPage = 16;
constexpr auto kNone = PrefixTree::kNone;

std::vector<TokenId> page(TokenId fill) { return std::vector<TokenId>(kPage, fill); }

TEST(PrefixTree, HashesDependOnParentAndEveryToken) {
  const std::vector<TokenId> tokens = page(7);
  const PageHash hash = hash_page({}, tokens);
  EXPECT_EQ(hash, hash_page({}, tokens));
  EXPECT_NE(hash, hash_page(hash, tokens));
  EXPECT_NE(hash, hash_page({0, 1}, tokens));
  for (int i = 0; i < kPage; ++i) {
    std::vector<TokenId> other = tokens;
    ++other[static_cast<size_t>(i)];
    EXPECT_NE(hash, hash_page({}, other)) << i;
  }
}

TEST(PrefixTree, FindsWhatWasAdded) {
  PrefixTree tree(kPage);
  EXPECT_EQ(tree.root("a"), kNone);
  const auto root = tree.add_root("a");
  EXPECT_EQ(tree.root("a"), root);
  EXPECT_TRUE(tree.is_root(root));
  EXPECT_EQ(tree.child(root, page(1).data()), kNone);
  const auto one = tree.add_child(root, page(1).data());
  const auto two = tree.add_child(root, page(2).data());
  const auto deep = tree.add_child(one, page(2).data());
  EXPECT_EQ(tree.child(root, page(1).data()), one);
  EXPECT_EQ(tree.child(root, page(2).data()), two);
  EXPECT_EQ(tree.child(one, page(2).data()), deep);
  EXPECT_EQ(tree.child(two, page(2).data()), kNone);
  EXPECT_EQ(tree.pages(deep), 2);
  EXPECT_EQ(tree.root_of(deep), root);
  EXPECT_EQ(tree.parent(deep), one);
  EXPECT_TRUE(tree.has_one_child(one));
  EXPECT_FALSE(tree.has_one_child(root));
  EXPECT_EQ(tree.size(), 4);
  EXPECT_EQ(tree.audit(), "");
  EXPECT_DEATH(tree.add_child(root, page(1).data()), "child");
  EXPECT_DEATH(tree.remove(one), "is_leaf");
}

TEST(PrefixTree, SpacesAreComparedWholeAndShareNothing) {
  PrefixTree tree(kPage);
  const std::string with_zero("a\0b", 3);
  const auto a = tree.add_root("a");
  const auto b = tree.add_root(with_zero);
  EXPECT_EQ(tree.root("a"), a);
  EXPECT_EQ(tree.root(with_zero), b);
  EXPECT_EQ(tree.root(std::string("a\0c", 3)), kNone);
  EXPECT_EQ(tree.root(""), kNone);
  tree.add_child(a, page(1).data());
  EXPECT_EQ(tree.child(b, page(1).data()), kNone);
  EXPECT_EQ(tree.spaces(), 2);
}

TEST(PrefixTree, ReusesIdsButNoBirths) {
  PrefixTree tree(kPage);
  const auto root = tree.add_root("a");
  const auto first = tree.add_child(root, page(1).data());
  const uint64_t birth = tree.birth(first);
  EXPECT_TRUE(tree.is_alive(first, birth));
  tree.remove(first);
  EXPECT_FALSE(tree.is_alive(first, birth));
  EXPECT_FALSE(tree.is_alive(first, 0));
  const auto second = tree.add_child(root, page(1).data());
  EXPECT_EQ(second, first);
  EXPECT_FALSE(tree.is_alive(first, birth));
  tree.remove(second);
  tree.remove(root);
  EXPECT_EQ(tree.root("a"), kNone);
  EXPECT_EQ(tree.size(), 0);
  tree.add_root("b");
  tree.clear();
  EXPECT_EQ(tree.size(), 0);
  EXPECT_FALSE(tree.is_alive(kNone, 1));
  const auto again = tree.add_root("a");
  EXPECT_GT(tree.birth(again), birth);
  EXPECT_EQ(tree.audit(), "");
}

TEST(PrefixTree, KeepsSiblingsInOrderOfUse) {
  PrefixTree tree(kPage);
  const auto root = tree.add_root("a");
  std::vector<PrefixTree::NodeId> children;
  for (TokenId fill = 0; fill < 5; ++fill) {
    children.push_back(tree.add_child(root, page(fill).data()));
  }
  EXPECT_EQ(tree.leaf_below(root), children[4]);
  for (const size_t recent : {1u, 1u, 4u, 0u}) {
    tree.make_recent(children[recent]);
    EXPECT_EQ(tree.leaf_below(root), children[recent]);
    EXPECT_EQ(tree.audit(), "");
  }
  tree.remove(children[0]);  // the first, one in the middle, and the last
  tree.remove(children[1]);
  tree.remove(children[2]);
  EXPECT_EQ(tree.audit(), "");
  EXPECT_EQ(tree.leaf_below(root), children[4]);
}

// A tree bigger than its first table, under a hash that is good, one that has four values and one
// that is always the same.
TEST(PrefixTree, EqualHashesNeverGiveAWrongNode) {
  const PrefixTree::Hasher hashers[] = {
      hash_page,
      [](const PageHash& parent, std::span<const TokenId> tokens) {
        return PageHash{hash_page(parent, tokens).low & 3, 0};
      },
      [](const PageHash&, std::span<const TokenId>) { return PageHash{}; }};
  for (const PrefixTree::Hasher hasher : hashers) {
    PrefixTree tree(kPage, hasher);
    std::vector<PrefixTree::NodeId> nodes = {tree.add_root("a"), tree.add_root("b")};
    for (size_t parent = 0; nodes.size() < 200; ++parent) {
      for (TokenId last = 0; last < 3; ++last) {
        std::vector<TokenId> tokens = page(5);
        tokens.back() = last;  // every node has children with the same tokens
        ASSERT_EQ(tree.child(nodes[parent], tokens.data()), kNone);
        nodes.push_back(tree.add_child(nodes[parent], tokens.data()));
        ASSERT_EQ(tree.child(nodes[parent], tokens.data()), nodes.back());
      }
    }
    EXPECT_EQ(tree.audit(), "");
    while (nodes.size() > 2) {
      tree.remove(nodes.back());
      nodes.pop_back();
    }
    EXPECT_EQ(tree.audit(), "");
  }
}

}  // namespace
}  // namespace pagezip
