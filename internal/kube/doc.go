// Package kube reads Kubernetes manifests and says what of them would cost
// requests at a stop or a rollout, and how long these take.
//
// It knows the manifests and nothing of a cluster: it talks to no API server
// and applies no defaults but those that Kubernetes and the AWS Load Balancer
// Controller document. What a manifest cannot tell, above all how long a
// program drains, comes as [Figures]: from annotations of the manifest
// ("handoverd/drain: 20s"), from the configuration of handoverd where a pod
// runs it, and from the caller.
//
// [Read] turns text into objects, [Check] turns objects into a [Report].
// Nothing in this package panics on any input, and nothing keeps state.
package kube
