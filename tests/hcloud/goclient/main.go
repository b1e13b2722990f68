// A whole life of what we use, told by the vendor's client to the server at the address that is
// given. It ends with status 1 at the first thing that is not as the vendor's own cloud has it.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
)

var (
	ctx    = context.Background()
	client *hcloud.Client
	labels = map[string]string{"hcloud-ccm/service-uid": "uid-1", "env": "test"}
	place  = &hcloud.Location{Name: "fsn1"}
)

func main() {
	client = hcloud.NewClient(
		hcloud.WithEndpoint(os.Args[1]),
		hcloud.WithToken(os.Args[2]),
		hcloud.WithPollOpts(hcloud.PollOpts{BackoffFunc: hcloud.ConstantBackoff(10 * time.Millisecond)}),
	)
	network := networks()
	server := servers(network)
	routes(network)
	balancers(network, server)
	ended(server)
	fmt.Println("done")
}

func networks() *hcloud.Network {
	made, _, err := client.Network.Create(ctx, hcloud.NetworkCreateOpts{
		Name:    "net",
		IPRange: prefix("10.0.0.0/16"),
		Subnets: []hcloud.NetworkSubnet{{
			Type: hcloud.NetworkSubnetTypeCloud, NetworkZone: hcloud.NetworkZoneEUCentral,
			IPRange: prefix("10.0.0.0/24"),
		}},
	})
	must(err)
	found, _, err := client.Network.GetByName(ctx, "net")
	must(err)
	same("network", found.ID, made.ID)
	same("subnets", len(found.Subnets), 1)
	return found
}

func servers(network *hcloud.Network) *hcloud.Server {
	key, _, err := client.SSHKey.Create(ctx, hcloud.SSHKeyCreateOpts{
		Name: "key", PublicKey: os.Args[3], Labels: labels,
	})
	must(err)
	group, _, err := client.PlacementGroup.Create(ctx, hcloud.PlacementGroupCreateOpts{
		Name: "group", Type: hcloud.PlacementGroupTypeSpread, Labels: labels,
	})
	must(err)
	wall, _, err := client.Firewall.Create(ctx, hcloud.FirewallCreateOpts{Name: "wall"})
	must(err)
	volume, _, err := client.Volume.Create(ctx, hcloud.VolumeCreateOpts{
		Name: "volume", Size: 10, Location: place, Labels: labels,
	})
	must(err)
	finish(volume.Action)
	image, _, err := client.Image.GetByNameAndArchitecture(ctx, "ubuntu-24.04", hcloud.ArchitectureX86)
	must(err)
	made, _, err := client.Server.Create(ctx, hcloud.ServerCreateOpts{
		Name: "node-1", ServerType: &hcloud.ServerType{Name: "cx23"}, Image: image,
		SSHKeys: []*hcloud.SSHKey{key}, Location: place, UserData: "#!/bin/sh", Labels: labels,
		Volumes: []*hcloud.Volume{volume.Volume}, Networks: []*hcloud.Network{network},
		Firewalls:      []*hcloud.ServerCreateFirewall{{Firewall: *wall.Firewall}},
		PlacementGroup: group.PlacementGroup,
	})
	must(err)
	finish(append(made.NextActions, made.Action)...)
	found, _, err := client.Server.GetByID(ctx, made.Server.ID)
	must(err)
	same("status", found.Status, hcloud.ServerStatusRunning)
	same("type", found.ServerType.Name, "cx23")
	same("private address", found.PrivateNet[0].IP.String(), "10.0.0.2")
	same("label", found.Labels["env"], "test")
	listed, err := client.Server.AllWithOpts(ctx, hcloud.ServerListOpts{
		ListOpts: hcloud.ListOpts{LabelSelector: "env=test", PerPage: 50},
	})
	must(err)
	same("selected", len(listed), 1)
	nobody, _, err := client.Server.GetByName(ctx, "nobody")
	must(err)
	same("nobody", nobody == nil, true)
	action, _, err := client.Server.Poweroff(ctx, found)
	must(err)
	finish(action)
	off, _, err := client.Server.GetByID(ctx, found.ID)
	must(err)
	same("status", off.Status, hcloud.ServerStatusOff)
	action, _, err = client.Server.Poweron(ctx, found)
	must(err)
	finish(action)
	return found
}

func routes(network *hcloud.Network) {
	route := hcloud.NetworkRoute{Destination: prefix("10.244.1.0/24"), Gateway: net.ParseIP("10.0.0.2")}
	action, _, err := client.Network.AddRoute(ctx, network, hcloud.NetworkAddRouteOpts{Route: route})
	must(err)
	finish(action)
	found, _, err := client.Network.GetByID(ctx, network.ID)
	must(err)
	same("gateway", found.Routes[0].Gateway.String(), "10.0.0.2")
	action, _, err = client.Network.DeleteRoute(ctx, network, hcloud.NetworkDeleteRouteOpts{Route: route})
	must(err)
	finish(action)
}

func balancers(network *hcloud.Network, server *hcloud.Server) {
	made, _, err := client.LoadBalancer.Create(ctx, hcloud.LoadBalancerCreateOpts{
		Name:             "lb",
		LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb11"},
		Algorithm:        &hcloud.LoadBalancerAlgorithm{Type: hcloud.LoadBalancerAlgorithmTypeRoundRobin},
		Location:         place, Labels: labels, Network: network,
	})
	must(err)
	finish(made.Action)
	listed, err := client.LoadBalancer.AllWithOpts(ctx, hcloud.LoadBalancerListOpts{
		ListOpts: hcloud.ListOpts{LabelSelector: "hcloud-ccm/service-uid=uid-1"},
	})
	must(err)
	same("selected", len(listed), 1)
	found := listed[0]
	every, within, tries := 15*time.Second, 10*time.Second, 3
	did := step{found}
	did.action(client.LoadBalancer.AddService(ctx, found, hcloud.LoadBalancerAddServiceOpts{
		Protocol: hcloud.LoadBalancerServiceProtocolTCP, ListenPort: hcloud.Ptr(80),
		DestinationPort: hcloud.Ptr(30080), Proxyprotocol: hcloud.Ptr(false),
		HealthCheck: &hcloud.LoadBalancerAddServiceOptsHealthCheck{
			Protocol: hcloud.LoadBalancerServiceProtocolTCP, Port: hcloud.Ptr(30080),
			Interval: &every, Timeout: &within, Retries: &tries,
		},
	}))
	same("health check", did.now().Services[0].HealthCheck.Interval, every)
	did.action(client.LoadBalancer.AddServerTarget(ctx, found, hcloud.LoadBalancerAddServerTargetOpts{
		Server: server, UsePrivateIP: hcloud.Ptr(true),
	}))
	did.action(client.LoadBalancer.AddIPTarget(ctx, found, hcloud.LoadBalancerAddIPTargetOpts{
		IP: net.ParseIP("192.0.2.1"),
	}))
	same("targets", len(did.now().Targets), 2)
	did.action(client.LoadBalancer.RemoveIPTarget(ctx, found, net.ParseIP("192.0.2.1")))
	did.action(client.LoadBalancer.UpdateService(ctx, found, 80, hcloud.LoadBalancerUpdateServiceOpts{
		DestinationPort: hcloud.Ptr(30081),
	}))
	same("port", did.now().Services[0].DestinationPort, 30081)
	did.action(client.LoadBalancer.ChangeAlgorithm(ctx, found, hcloud.LoadBalancerChangeAlgorithmOpts{
		Type: hcloud.LoadBalancerAlgorithmTypeLeastConnections,
	}))
	did.action(client.LoadBalancer.ChangeType(ctx, found, hcloud.LoadBalancerChangeTypeOpts{
		LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb21"},
	}))
	address := did.now().PublicNet.IPv4.IP.String()
	did.action(client.LoadBalancer.ChangeDNSPtr(ctx, found, address, hcloud.Ptr("web.example.com")))
	same("name of the address", did.now().PublicNet.IPv4.DNSPtr, "web.example.com")
	did.action(client.LoadBalancer.DisablePublicInterface(ctx, found))
	same("public", did.now().PublicNet.Enabled, false)
	did.action(client.LoadBalancer.EnablePublicInterface(ctx, found))
	did.action(client.LoadBalancer.RemoveServerTarget(ctx, found, server))
	did.action(client.LoadBalancer.DetachFromNetwork(ctx, found, hcloud.LoadBalancerDetachFromNetworkOpts{
		Network: network,
	}))
	did.action(client.LoadBalancer.AttachToNetwork(ctx, found, hcloud.LoadBalancerAttachToNetworkOpts{
		Network: network, IP: net.ParseIP("10.0.0.77"),
	}))
	same("private address", did.now().PrivateNet[0].IP.String(), "10.0.0.77")
	changed, _, err := client.LoadBalancer.Update(ctx, found, hcloud.LoadBalancerUpdateOpts{
		Name: "other", Labels: labels,
	})
	must(err)
	same("name", changed.Name, "other")
	same("type", changed.LoadBalancerType.Name, "lb21")
	did.action(client.LoadBalancer.DeleteService(ctx, found, 80))
	did.action(client.LoadBalancer.ChangeProtection(ctx, found, hcloud.LoadBalancerChangeProtectionOpts{
		Delete: hcloud.Ptr(true),
	}))
	_, err = client.LoadBalancer.Delete(ctx, found)
	same("protected", hcloud.IsError(err, hcloud.ErrorCodeProtected), true)
	did.action(client.LoadBalancer.ChangeProtection(ctx, found, hcloud.LoadBalancerChangeProtectionOpts{
		Delete: hcloud.Ptr(false),
	}))
	_, err = client.LoadBalancer.Delete(ctx, found)
	must(err)
	certificate, _, err := client.Certificate.CreateCertificate(ctx, hcloud.CertificateCreateOpts{
		Name: "cert", Type: hcloud.CertificateTypeManaged, DomainNames: []string{"example.com"},
	})
	must(err)
	finish(certificate.Action)
	issued, _, err := client.Certificate.GetByID(ctx, certificate.Certificate.ID)
	must(err)
	same("issuance", issued.Status.Issuance, hcloud.CertificateStatusTypeCompleted)
}

func ended(server *hcloud.Server) {
	gone, _, err := client.Server.DeleteWithResult(ctx, server)
	must(err)
	finish(gone.Action)
	found, _, err := client.Server.GetByID(ctx, server.ID)
	must(err)
	same("deleted server", found == nil, true)
	_, _, err = client.Server.Create(ctx, hcloud.ServerCreateOpts{
		Name: "node-2", ServerType: &hcloud.ServerType{Name: "none"},
		Image: &hcloud.Image{Name: "ubuntu-24.04"},
	})
	same("refused", err != nil, true)
}

// A step of a balancer's life.
type step struct{ balancer *hcloud.LoadBalancer }

func (s step) action(action *hcloud.Action, _ *hcloud.Response, err error) {
	must(err)
	finish(action)
}

func (s step) now() *hcloud.LoadBalancer {
	found, _, err := client.LoadBalancer.GetByID(ctx, s.balancer.ID)
	must(err)
	return found
}

func finish(actions ...*hcloud.Action) { must(client.Action.WaitFor(ctx, actions...)) }

func prefix(text string) *net.IPNet {
	_, found, err := net.ParseCIDR(text)
	must(err)
	return found
}

func same[T comparable](what string, found, wanted T) {
	if found != wanted {
		must(fmt.Errorf("%s is %v, not %v", what, found, wanted))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
